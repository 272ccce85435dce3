"""Requests about weights, by verb."""

from __future__ import annotations

from typing import Any


def weights_verb(verb: str, request: dict[str, Any]) -> None:
    if verb == "weights_list":
        from launcher.node.weights_list import weights_list

        weights_list(**request)
    elif verb == "weights_prepare":
        from launcher.node.weights_prepare import weights_prepare

        weights_prepare(**request)
    elif verb == "weights_serve":
        from launcher.node.weights_serve import weights_serve

        weights_serve(**request)
    elif verb == "weights_receive":
        from launcher.node.weights_receive import weights_receive

        weights_receive(**request)
    elif verb == "weights_verify":
        from launcher.node.weights_verify import weights_verify

        weights_verify(**request)
    elif verb == "weights_adopt":
        from launcher.node.weights_adopt import weights_adopt

        weights_adopt(**request)
    elif verb == "weights_fetch":
        from launcher.node.weights_fetch import weights_fetch

        weights_fetch(**request)
    elif verb == "weights_drop_cache":
        from launcher.node.weights_cache import weights_drop_cache

        weights_drop_cache(**request)
    elif verb == "weights_engram_layers":
        from launcher.node.weights_packed import weights_engram_layers

        weights_engram_layers(**request)
    elif verb == "weights_packed":
        from launcher.node.weights_packed import weights_packed

        weights_packed(**request)
    else:
        from launcher.node.answer import Refused

        raise Refused(f"verb must be one the node code knows, got {verb!r}", "update sparkctl")
