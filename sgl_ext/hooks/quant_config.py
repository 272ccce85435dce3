"""ModelConfig._parse_quant_hf_config: on the CPU the model runs on dequantised weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind


def hide_v41_quantisation(original: Callable[[Any], Any], model_config: Any) -> Any:
    """None for V4.1, so that every layer is built in bf16; load_weights then dequantises, which is exact."""
    if getattr(model_config.hf_config, "model_type", None) == "deepseek_v41":
        return None
    return original(model_config)


HOOK = Hook(
    target="sglang.srt.configs.model_config.ModelConfig._parse_quant_hf_config",
    kind=HookKind.AROUND,
    replacement=hide_v41_quantisation,
    reason="SGLang has no CPU form of FP8 32 x 32 linears and MXFP4 experts",
    sglang_versions=("0.5.23",),
    fingerprint="f784bdd767046590",
    remove_when="SGLang runs FP8 32 x 32 and MXFP4 weights on the CPU",
)
