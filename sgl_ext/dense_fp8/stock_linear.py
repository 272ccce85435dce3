"""One of SGLang's FP8 kernels through its own linear layer: the class, preparation and call of the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from sgl_ext.dense_fp8.linear_cases import BlockWeight, LinearShape
from sgl_ext.experts.candidate import Device, Presence
from sgl_ext.experts.packages import find_packages


class StockLinear:
    """name: SGLang's --fp8-gemm-backend. majors: of the CUDA capability that it is for."""

    error_bound = 0.08  # inputs are FP8 inside; their rounding alone stays well within

    def __init__(self, name: str, majors: tuple[int, ...], packages: Mapping[str, str], quant: Any) -> None:
        self.name = name
        self._majors = majors
        self._packages = packages
        self._quant = quant  # the checkpoint's quantization_config

    def probe(self, device: Device) -> Presence:
        found = find_packages(self._packages)
        if device.capability is None or device.capability[0] not in self._majors:
            wanted = " or ".join(f"sm_{major}x" for major in self._majors)
            return Presence(missing=f"needs {wanted}, on {device}", versions=found.versions)
        return found

    def prepare(self, weight: BlockWeight, shape: LinearShape) -> Any:
        """The layer keeps the kernel that was SGLang's choice while it was made."""
        from sglang.srt.layers.linear import ReplicatedLinear
        from sglang.srt.layers.quantization.fp8 import Fp8Config

        with chosen_backend(self.name), torch.device(weight.weight.device):
            layer = ReplicatedLinear(
                shape.inputs,
                shape.outputs,
                bias=False,
                params_dtype=torch.bfloat16,
                quant_config=Fp8Config.from_config(self._quant),
                prefix="boot_check",
            )
            layer.weight.data.copy_(weight.weight)
            layer.weight_scale_inv.data.copy_(weight.scale)
            layer.quant_method.process_weights_after_loading(layer)
        return layer

    def run(self, prepared: Any, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = prepared(rows)[0]
        return output


def stock_candidates(quant: Any) -> tuple[StockLinear, ...]:
    """FlashInfer's CUTLASS MXFP8 on sm_12x, and SGLang's Triton kernel, which it falls back to there."""
    sglang = {"sglang": "0.5.23"}
    return (
        StockLinear("flashinfer_cutlass", (12,), {"flashinfer-python": "0.7.2", **sglang}, quant),
        StockLinear("triton", (9, 12), sglang, quant),
    )


@contextmanager
def chosen_backend(name: str) -> Iterator[None]:
    from sglang.srt.layers.quantization import fp8_utils

    before = fp8_utils.FP8_GEMM_RUNNER_BACKEND
    tell_sglang(name)
    try:
        yield
    finally:
        fp8_utils.FP8_GEMM_RUNNER_BACKEND = before


def tell_sglang(name: str) -> None:
    """Layers that are made from now on take this kernel."""
    from sglang.srt.layers.quantization import fp8_utils

    fp8_utils.FP8_GEMM_RUNNER_BACKEND = fp8_utils.Fp8GemmRunnerBackend(name)
