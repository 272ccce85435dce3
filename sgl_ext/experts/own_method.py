"""SGLang's expert method for candidates that SGLang has none for (b12x, reference), and for padded widths."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.experts.candidate import Candidate, ExpertCall
from sgl_ext.experts.expert_weights import ExpertShape, PackedExperts, pad_width


class OwnExpertMethod:
    """Loads through SGLang's FP8 method with native scales, then prepares and runs a candidate.

    SGLang's dispatcher gives such a method local expert ids, -1 for those of other ranks.
    """

    fuse_routed_scaling_factor_in_topk = True
    runner = None

    def __init__(self, fp8_method: Any, candidate: Candidate) -> None:
        self._fp8 = fp8_method
        self._candidate = candidate

    def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        self._fp8.create_weights(layer, *args, fp4_scale_dtype=torch.float8_e8m0fnu, **kwargs)

    def create_moe_runner(self, layer: torch.nn.Module, moe_runner_config: Any) -> None:
        self._limit = moe_runner_config.swiglu_limit
        self._shape = ExpertShape(
            num_experts=moe_runner_config.num_local_experts,
            hidden=moe_runner_config.hidden_size,
            width=moe_runner_config.intermediate_size_per_partition,
            top_k=moe_runner_config.top_k,
        )

    def get_moe_runner_backend(self, layer: torch.nn.Module) -> None:
        return None

    def get_moe_routing_method_type(self, layer: torch.nn.Module, requested_method: Any) -> Any:
        return requested_method

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        self._fp8.process_weights_after_loading(layer)
        packed = take_packed(layer)
        layer.sparkctl_experts = self._candidate.prepare(packed, self._shape, self._limit)

    def apply(self, layer: torch.nn.Module, dispatch_output: Any) -> Any:
        from sglang.srt.layers.moe.token_dispatcher.standard import StandardCombineInput

        weights, ids, _ = dispatch_output.topk_output
        call = ExpertCall(
            x=dispatch_output.hidden_states, topk_ids=ids, topk_weights=weights, limit=self._limit
        )
        return StandardCombineInput(hidden_states=self._candidate.run(layer.sparkctl_experts, call))


def take_packed(layer: torch.nn.Module) -> PackedExperts:
    """The loaded weights as bytes; the layer gives up its parameters, which preparation may consume."""
    packed = PackedExperts(
        w13=layer.w13_weight.data.view(torch.uint8),
        w13_scale=layer.w13_weight_scale_inv.data.view(torch.uint8),
        w2=layer.w2_weight.data.view(torch.uint8),
        w2_scale=layer.w2_weight_scale_inv.data.view(torch.uint8),
    )
    for name in ("w13_weight", "w13_weight_scale_inv", "w2_weight", "w2_weight_scale_inv"):
        delattr(layer, name)
    return packed


def put_padded(layer: torch.nn.Module, multiple: int) -> None:
    """Pads the loaded experts to a multiple, each half of w13 by itself; the parameters keep their types."""
    names = {"w13": "w13_weight", "w13_scale": "w13_weight_scale_inv", "w2": "w2_weight",
             "w2_scale": "w2_weight_scale_inv"}  # fmt: skip
    types = {field: getattr(layer, name).dtype for field, name in names.items()}
    packed = pad_width(take_packed(layer), multiple)
    for field, name in names.items():
        tensor = getattr(packed, field).view(types[field])
        layer.register_parameter(name, torch.nn.Parameter(tensor, requires_grad=False))


def padded_method(fp8_method: Any, prefix: str, multiple: int) -> Any:
    """SGLang's FlashInfer method for a width that its kernel does not take, such as 576."""
    from sglang.srt.layers.quantization.mxfp4_flashinfer_cutlass_moe import Mxfp4FlashinferCutlassMoEMethod

    class PaddedCutlassMethod(Mxfp4FlashinferCutlassMoEMethod):  # type: ignore[misc]
        """Loads the real width and pads it before SGLang's own preparation."""

        def create_weights(self, layer: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
            self._fp8.create_weights(layer, *args, fp4_scale_dtype=torch.float8_e8m0fnu, **kwargs)

        def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
            put_padded(layer, multiple)
            super().process_weights_after_loading(layer)

    return PaddedCutlassMethod(fp8_method, prefix=prefix)
