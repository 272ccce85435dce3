"""Marlin W4A16 through SGLang's own method: sm_90 and sm_12x. Not run on a GB10."""

from __future__ import annotations

from typing import Any

import torch

from sgl_ext.experts.candidate import Device, ExpertCall, Presence
from sgl_ext.experts.expert_weights import ExpertShape, PackedExperts
from sgl_ext.experts.packages import find_packages
from sgl_ext.experts.stock_method import NothingToNormalise, PreparedLayer, prepare_layer, run_layer


class Marlin:
    name = "marlin"
    error_bound = 0.02
    act_bits = 16

    def probe(self, device: Device, shape: ExpertShape) -> Presence:
        found = find_packages({"sglang-kernel": "0.4.10", "sglang": "0.5.23"})
        if device.capability is None or device.capability[0] not in (9, 12):
            return Presence(missing=f"needs sm_90 or sm_12x, on {device}", versions=found.versions)
        if shape.hidden % 64:
            missing = f"needs a hidden width in multiples of 64, got {shape.hidden}"
            return Presence(missing=missing, versions=found.versions)
        return found

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> PreparedLayer:
        from sglang.srt.layers.quantization.mxfp4_marlin_moe import Mxfp4MarlinMoEMethod

        method: Any = Mxfp4MarlinMoEMethod(NothingToNormalise(), prefix="boot check")
        return prepare_layer(method, packed, shape, limit)

    def run(self, prepared: PreparedLayer, call: ExpertCall) -> torch.Tensor:
        # SGLang's dispatcher maps ids to local ones before Marlin; the check's are local already.
        return run_layer(prepared, call, global_ids=False)
