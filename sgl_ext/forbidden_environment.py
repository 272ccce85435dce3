"""Variables that an engine on sm_12x must not run with.

The launcher refuses them in a recipe; an image, a shell or another launcher can still bring them, so each
rank looks at what it really has before it builds anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sgl_ext.errors import SettingError
from sgl_ext.hook_sets import HookSet

_ON = r"(?i)(1|true|yes|y|on)"
_NOT_ZERO = r"(?!0$).*"
_LAYOUT_HINT = "unset it and set extensions.kv_layout (SPARKCTL_KV_LAYOUT), which is checked at boot"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """`bad`: pattern of the whole value."""

    name: str
    bad: str
    reason: str
    hint: str = ""


FORBIDDEN: Mapping[HookSet, tuple[Forbidden, ...]] = {
    HookSet.SM12X: (
        *(
            Forbidden(
                name=name,
                bad=r"(?i).*expandable_segments\s*:\s*true.*",
                reason="logits become NaN in prefills above 64 tokens and in batches of 3 and more",
                hint="write expandable_segments:False, or unset it",
            )
            for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
        ),
        *(
            Forbidden(name=name, bad=_NOT_ZERO, reason="the first collective of 4 bytes then never ends")
            for name in ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")
        ),
        Forbidden(
            name="SGLANG_OPT_SM120_DIRECT_SWA_KV",
            bad=_ON,
            reason="SGLang 0.5.23 then keeps window pages of 64 tokens and still stores pages of 256",
        ),
        *(
            Forbidden(
                name=name,
                bad=r"(?i)(?!auto$).*",
                reason="the plugin gives the pools the layout that passed its check",
                hint=_LAYOUT_HINT,
            )
            for name in ("SGLANG_DSV4_KV_LAYOUT", "SGLANG_DSV4_COMPRESSED_KV_LAYOUT")
        ),
        Forbidden(
            name="SGLANG_OPT_FP8_WO_A_GEMM",
            bad=_ON,
            reason="it takes blocks of 128 x 128 only and would be left out for DeepSeek-V4.1's 32 x 32",
        ),
        Forbidden(
            name="SGLANG_OPT_USE_TOPK_V2",
            bad=_ON,
            reason="SGLang switches it off on sm_12x whatever it is set to",
        ),
        *(
            Forbidden(
                name=name,
                bad=_ON,
                reason="the folded verify graph reads accepted lengths before they are copied",
            )
            for name in ("SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH", "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH")
        ),
    ),
    HookSet.ROW_STORE: (
        Forbidden(
            name="SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE",
            bad=_ON,
            reason="Engram rows come from packed files here, and no table in memory would be used",
        ),
    ),
}


def refuse_forbidden(environment: Mapping[str, str], hook_sets: Sequence[HookSet]) -> None:
    """Raises SettingError for the first variable that must not have its value with these hook sets."""
    for hook_set in hook_sets:
        for item in FORBIDDEN.get(hook_set, ()):
            value = environment.get(item.name)
            if value is not None and re.fullmatch(item.bad, value.strip(), re.DOTALL):
                raise SettingError(
                    f"{item.name} must not be {value!r} for DeepSeek-V4.1 on this engine (environment): "
                    f"{item.reason}.",
                    hint=item.hint or f"unset {item.name}",
                )
