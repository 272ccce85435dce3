"""Fp8Config.get_quant_method: routed MXFP4 experts get the method of the backend that was chosen at boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.experts.boot_choice import chosen
from sgl_ext.hook import Hook, HookKind


def give_chosen_method(original: Callable[..., Any], config: Any, layer: Any, prefix: str) -> Any:
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    choice = chosen()
    if choice is None or not config.is_fp4_experts or not isinstance(layer, FusedMoE):
        return original(config, layer, prefix)
    from sglang.srt.layers.quantization.fp8 import Fp8MoEMethod

    from sgl_ext.experts.flashinfer_mxfp4 import WIDTH_MULTIPLE
    from sgl_ext.experts.own_method import OwnExpertMethod, padded_method

    name = choice.candidate.name
    if name in ("b12x", "reference"):
        return OwnExpertMethod(Fp8MoEMethod(config), choice.candidate)
    if name == "flashinfer_mxfp4" and layer.intermediate_size_per_partition % WIDTH_MULTIPLE:
        return padded_method(Fp8MoEMethod(config), prefix, WIDTH_MULTIPLE)
    return original(config, layer, prefix)


def find_other_method(scheduler: Any) -> str | None:
    """Every routed expert layer must run the chosen backend."""
    from sglang.srt.layers.moe.fused_moe_triton import FusedMoE

    choice = chosen()
    if choice is None:
        return None
    wanted = {
        "flashinfer_mxfp4": ("Mxfp4FlashinferCutlassMoEMethod", "PaddedCutlassMethod"),
        "marlin": ("Mxfp4MarlinMoEMethod",),
    }.get(choice.candidate.name, ("OwnExpertMethod",))
    for layer in scheduler.tp_worker.model_runner.model.modules():
        if isinstance(layer, FusedMoE) and type(layer.quant_method).__name__ not in wanted:
            return f"an expert layer with {type(layer.quant_method).__name__} instead of {wanted[0]}"
    return None


HOOK = Hook(
    target="sglang.srt.layers.quantization.fp8.Fp8Config.get_quant_method",
    kind=HookKind.AROUND,
    replacement=give_chosen_method,
    reason="SGLang has no method for b12x and the reference, and refuses widths that are no multiple of "
    "FlashInfer's tiles",
    sglang_versions=("0.5.23",),
    fingerprint="6e5f25dddf78723f",
    remove_when="SGLang checks its expert kernels at boot and takes every width",
    check_effect=find_other_method,
)
