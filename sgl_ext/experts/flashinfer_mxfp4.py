"""FlashInfer's CUTLASS MoE through SGLang's own method: W4A8 on sm_12x, W4A16 on sm_90. Not run on a GB10."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.experts.candidate import Device, ExpertCall, Presence
from sgl_ext.experts.expert_weights import ExpertShape, PackedExperts, pad_width
from sgl_ext.experts.packages import find_packages
from sgl_ext.experts.stock_method import NothingToNormalise, PreparedLayer, prepare_layer, run_layer

WIDTH_MULTIPLE = 128  # of the kernel's tiles; TP 4 without expert groups has 576, which is padded to 640


class FlashinferMxfp4:
    name = "flashinfer_mxfp4"

    def __init__(self, device: Device) -> None:
        self.act_bits = 8 if device.capability is not None and device.capability[0] == 12 else 16
        self.error_bound = 0.08 if self.act_bits == 8 else 0.02

    def probe(self, device: Device, shape: ExpertShape) -> Presence:
        found = find_packages({"flashinfer-python": "0.7.2", "sglang": "0.5.23"})
        if device.capability is None or device.capability[0] not in (9, 12):
            return Presence(missing=f"needs sm_90 or sm_12x, on {device}", versions=found.versions)
        if shape.hidden % WIDTH_MULTIPLE:
            missing = f"needs a hidden width in multiples of {WIDTH_MULTIPLE}, got {shape.hidden}"
            return Presence(missing=missing, versions=found.versions)
        return found

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> PreparedLayer:
        from sglang.srt.layers.quantization.mxfp4_flashinfer_cutlass_moe import (
            Mxfp4FlashinferCutlassMoEMethod,
        )

        method: Any = Mxfp4FlashinferCutlassMoEMethod(NothingToNormalise(), prefix="boot check")
        return prepare_layer(method, pad_width(packed, WIDTH_MULTIPLE), shape, limit)

    def run(self, prepared: PreparedLayer, call: ExpertCall) -> torch.Tensor:
        return run_layer(prepared, call, global_ids=True)
