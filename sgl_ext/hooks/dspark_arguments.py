"""_handle_dspark: SGLang's argument check knows no CPU form of DSpark; this plugin has one for V4.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.hook_sets import V41_MODEL_TYPES
from sgl_ext.model_config import read_model_config

_MODULE = "sglang.srt.arg_groups.speculative_hook"


class _OnAccelerator:
    """The arguments as they are, but for the device that one check asks about."""

    device = "cuda"

    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def accept_v41_on_cpu(original: Callable[[Any], None], server_args: Any) -> None:
    """Resolves DSpark's arguments as on a GPU; models other than V4.1 keep SGLang's refusal."""
    config = read_model_config(server_args.model_path)
    if config is None or config.get("model_type") not in V41_MODEL_TYPES:
        original(server_args)
        return
    from sglang.srt.arg_groups import speculative_hook

    view = speculative_hook.resolving_view
    with patch(f"{_MODULE}.resolving_view", lambda args: _OnAccelerator(view(args))):
        original(server_args)


HOOK = Hook(
    target=f"{_MODULE}._handle_dspark",
    kind=HookKind.AROUND,
    replacement=accept_v41_on_cpu,
    reason="it refuses every device but CUDA, NPU and XPU before any model code, though DSpark's own "
    "operations have PyTorch forms",
    sglang_versions=("0.5.23",),
    fingerprint="1013ddf3436fdd68",
    remove_when="SGLang accepts DSpark on the CPU",
)
