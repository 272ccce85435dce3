"""Chooses on sm_12x whether wo_a stays bf16, as SGLang loads it, or goes back to FP8, half the bytes.

Both products run on drawn weights in the rank's shape against plain PyTorch, and are timed; the ranks decide
together, as on expert backends. That the real weights come back exactly is checked for each of them later.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sgl_ext.dense_fp8.linear_cases import BATCH_TOKENS, DECODE_TOKENS, PREFILL_TOKENS
from sgl_ext.errors import DenseBackendError, SettingError
from sgl_ext.experts.choose import AUTO, Subject, Vote, choose_backend
from sgl_ext.experts.gather_votes import gather_votes
from sgl_ext.experts.packages import find_packages
from sgl_ext.experts.self_check import Verdict, judge, relative_error, time_call
from sgl_ext.wo_a.packed_layers import KERNEL_ROWS, PackedLayers, Product, pack_layers, packed_layers
from sgl_ext.wo_a.repack import BLOCK, PackedGroups, repack

WO_A_VARIABLE = "SPARKCTL_WO_A"
WO_A = Subject(
    name="form of wo_a",
    kind="form of wo_a",
    key="extensions.wo_a",
    page="docs/sm12x.md",
    error=DenseBackendError,
)
_SEED = 20251130


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShape:
    """wo_a on a rank: G groups of R output features, D inputs each."""

    groups: int
    features: int
    inputs: int


class Form(Protocol):
    """error_bound: largest relative error of a row of a group that rounding the output to bf16 explains."""

    @property
    def name(self) -> str: ...

    @property
    def error_bound(self) -> float: ...

    def prepare(self, weight: torch.Tensor) -> Any: ...

    def run(self, prepared: Any, rows: torch.Tensor) -> torch.Tensor: ...


class Bf16:
    """SGLang's own product, called as its attention does."""

    name = "bf16"
    error_bound = 0.01

    def __init__(self, product: Product) -> None:
        self._product = product

    def prepare(self, weight: torch.Tensor) -> torch.Tensor:
        return weight

    def run(self, prepared: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return self._product(rows, prepared, **how_called(rows))


class Fp8:
    """Weights packed as pack_layers packs them, and the product of its hook."""

    name = "fp8"
    error_bound = 0.01

    def __init__(self, product: Product) -> None:
        self._product = product

    def prepare(self, weight: torch.Tensor) -> tuple[PackedLayers, PackedGroups]:
        packed, layers = repack(weight), PackedLayers()
        if packed is None:
            raise ValueError("weights in FP8 must come back exactly")
        layers.add(packed)
        return layers, packed

    def run(self, prepared: tuple[PackedLayers, PackedGroups], rows: torch.Tensor) -> torch.Tensor:
        layers, packed = prepared
        return layers.multiply(self._product, rows, packed, **how_called(rows))


def how_called(rows: torch.Tensor) -> dict[str, bool]:
    """The flags of a verify step, or of a prefill where there are more rows than a step has."""
    is_step = rows.shape[0] <= KERNEL_ROWS
    return {"is_decode": False, "is_target_verify": is_step, "is_prefill": not is_step, "fast_path": True}


def read_wo_a(environment: Mapping[str, str]) -> str:
    """auto unless bf16 or fp8 is asked for. Raises SettingError."""
    choice = environment.get(WO_A_VARIABLE, AUTO)
    if choice not in ("bf16", "fp8", AUTO):
        raise SettingError(
            f"{WO_A_VARIABLE} must be one of bf16, fp8, auto, got {choice!r} (environment).",
            hint=f"unset {WO_A_VARIABLE}",
        )
    return choice


def rank_shape(config: Any, tp_size: int) -> GroupShape:
    """config: the text config, padded to whole head groups of a rank."""
    inputs = config.num_attention_heads * config.head_dim // config.o_groups
    return GroupShape(groups=config.o_groups // tp_size, features=config.o_lora_rank, inputs=inputs)


def draw_weight(shape: GroupShape, device: torch.device) -> torch.Tensor:
    """bf16 [G, R, D] that SGLang would have loaded: every finite e4m3 value, scales that differ; one block of
    zeros, as padded groups have, and one of values below e4m3's normal ones.
    """
    draw = torch.Generator().manual_seed(_SEED)
    size = (shape.groups, shape.features, shape.inputs)
    codes = torch.randint(0, 256, size, dtype=torch.uint8, generator=draw)
    codes[(codes & 0x7F) == 0x7F] = 0x3C  # the two that are no number
    codes[0, :BLOCK, :BLOCK] = 0
    codes[0, :BLOCK, BLOCK : 2 * BLOCK] &= 0x87
    blocks = (shape.groups, shape.features // BLOCK, shape.inputs // BLOCK)
    exponents = torch.randint(112, 119, blocks, dtype=torch.uint8, generator=draw)
    drawn = PackedGroups(codes=codes.view(torch.float8_e4m3fn), exponents=exponents)
    return drawn.dequantised().to(device)


def reference(weight: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """fp32 products, [T, G, R] in bf16."""
    return torch.einsum("tgd,grd->tgr", rows.float(), weight.float()).to(torch.bfloat16)


def check_form(form: Form, shape: GroupShape, sizes: Sequence[int], device: torch.device) -> Verdict:
    """Whatever a product raises is its problem, by name."""
    presence = find_packages({"sglang": "0.5.23"})
    return judge(form, presence, functools.partial(_prove, form, shape, sizes, device))


def _prove(
    form: Form,
    shape: GroupShape,
    sizes: Sequence[int],
    device: torch.device,
    errors: dict[str, float],
    times: dict[str, float],
) -> str | None:
    weight = draw_weight(shape, device)
    prepared = form.prepare(weight)
    for tokens in sizes:
        draw = torch.Generator().manual_seed(tokens)
        drawn = torch.randn((tokens, shape.groups, shape.inputs), generator=draw)
        rows = drawn.to(device, torch.bfloat16)
        seen, wanted = form.run(prepared, rows).clone(), reference(weight, rows)
        name = f"{tokens} tokens"
        if seen.shape != wanted.shape or seen.dtype != wanted.dtype:
            must = f"{tuple(wanted.shape)} {wanted.dtype}"
            return f"{name}: must give {must}, got {tuple(seen.shape)} {seen.dtype}"
        error = relative_error(seen.flatten(0, 1), wanted.flatten(0, 1))
        errors[name] = error if seen.isfinite().all() else float("inf")
        if not errors[name] <= form.error_bound:
            return f"{name}: relative error must be at most {form.error_bound:g}, got {errors[name]:.3g}"
        if not torch.equal(seen, form.run(prepared, rows)):
            return f"{name}: gives other bits when it is called again"
        if tokens in (DECODE_TOKENS, BATCH_TOKENS, PREFILL_TOKENS):
            times[name] = time_call(functools.partial(form.run, prepared, rows), device)
    padding = form.run(form.prepare(torch.zeros_like(weight)), rows)
    return "zero weights must give exact zeros" if padding.any() else None


@functools.cache
def _state() -> dict[str, object]:
    return {}


def describe_wo_a() -> dict[str, object]:
    """For the rank report: the choice and its check, and what was packed."""
    return dict(_state())


def choose_form(
    forms: Sequence[Form], shape: GroupShape, parallel: Any, *, device: torch.device, group: Any, wanted: str
) -> str:
    """Once per process. Raises DenseBackendError on all ranks where none passes, where one that is asked for
    fails, or where ranks come to different verdicts. Blocks until all ranks have voted.
    """
    sizes = (DECODE_TOKENS, BATCH_TOKENS, KERNEL_ROWS - 1) + (
        (PREFILL_TOKENS,) if device.type == "cuda" else ()
    )
    with torch.inference_mode():
        verdicts = tuple(
            check_form(form, shape, sizes, device) for form in forms if wanted in (AUTO, form.name)
        )
    own = Vote(rank=parallel.tp_rank, host=socket.gethostname(), wanted=wanted, verdicts=verdicts)
    name = choose_backend(gather_votes(own, group), WO_A)
    _state().update(chosen=name, wanted=wanted, verdicts=[verdict.as_json() for verdict in verdicts])
    return name


def choose_for_rank(config: Any, parallel: Any, *, device: torch.device, group: Any) -> None:
    from sglang.srt.models import deepseek_v4

    if _state():
        return
    product = deepseek_v4._apply_wo_a_bf16_matmul
    shape, wanted = rank_shape(config, parallel.tp_size), read_wo_a(os.environ)
    choose_form((Bf16(product), Fp8(product)), shape, parallel, device=device, group=group, wanted=wanted)
    torch.cuda.empty_cache()


def pack_chosen(layers: Any) -> None:
    """After the weights are loaded. Raises DenseBackendError where fp8 was asked for and a weight is none;
    with auto it stays bf16 then, and the rank report says why.
    """
    if _state().get("chosen") != "fp8":
        return
    problem = pack_layers(layers)
    if problem is not None and _state()["wanted"] != AUTO:
        raise DenseBackendError(
            f"The form fp8 of wo_a must hold the checkpoint's weights exactly, got {problem}.",
            hint=WO_A.hint,
        )
    held = packed_layers().by_address.values()
    _state().update(kept_bf16=problem, layers=len(held), packed_bytes=sum(item.num_bytes for item in held))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()  # the bf16 weights make room for the KV pool
