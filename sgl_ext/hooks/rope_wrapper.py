"""get_rope_wrapper: SGLang's CPU form knows scaled rotary embeddings only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind


def plain_rope_where_unscaled(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """V4.1's ratio-0 layers rotate without scaling; its own kernels read freqs_cis, not this object."""
    if kwargs.get("rope_scaling") is not None:
        return original(*args, **kwargs)
    from sglang.srt.layers.rotary_embedding.factory import get_rope

    kwargs.pop("device", None)
    return get_rope(*args, **kwargs)


HOOK = Hook(
    target="sglang.srt.layers.rotary_embedding.factory.get_rope_wrapper",
    kind=HookKind.AROUND,
    replacement=plain_rope_where_unscaled,
    reason="get_rope_cpu asserts that a rope_scaling is given",
    sglang_versions=("0.5.23",),
    fingerprint="7847ad6513120093",
    remove_when="get_rope_cpu accepts layers without scaling",
)
