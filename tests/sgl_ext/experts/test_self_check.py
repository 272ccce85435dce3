"""The boot check of expert backends: right ones pass within their bound, each wrong one is found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

import torch

from sgl_ext.experts.b12x import B12x
from sgl_ext.experts.candidate import Device, ExpertCall, Presence
from sgl_ext.experts.check_cases import draw_call, draw_cases, draw_packed
from sgl_ext.experts.dequantised import Dequantised
from sgl_ext.experts.expert_weights import DenseExperts, ExpertShape, PackedExperts, pad_width
from sgl_ext.experts.flashinfer_mxfp4 import FlashinferMxfp4
from sgl_ext.experts.marlin import Marlin
from sgl_ext.experts.reference import Reference
from sgl_ext.experts.self_check import Expected, Verdict, check_candidate, expect
from sgl_ext.kernels.clamped_swiglu import swiglu

HERE = torch.device("cpu")
CPU = Device(kind="cpu", capability=None)
SHAPE = ExpertShape(num_experts=6, hidden=256, width=96, top_k=3)
LIMIT = 10.0


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Products this small wait for each other when two workers share the cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def expected() -> Expected:
    cases = draw_cases(SHAPE, (6, 48), dtype=torch.bfloat16, device=HERE, limit=LIMIT)
    return expect(SHAPE, cases, LIMIT, HERE)


def check(candidate: Any, expected: Expected) -> Verdict:
    return check_candidate(candidate, CPU, expected, must_repeat=True)


def mxfp8(values: torch.Tensor) -> torch.Tensor:
    """Activations as a W4A8 kernel sees them: e4m3 with one power of two per 32."""
    blocks = values.float().unflatten(-1, (-1, 32))
    scale = torch.exp2(torch.ceil(torch.log2(blocks.abs().amax(-1, keepdim=True).clamp_min(1e-30) / 448)))
    return ((blocks / scale).to(torch.float8_e4m3fn).float() * scale).flatten(-2)


class Simulated:
    """A candidate whose maths is the reference's but for `change`, on dense matrices."""

    name = "simulated"
    error_bound = 0.02
    act_bits = 16

    def __init__(self, *, weights: Callable[[DenseExperts], DenseExperts] = lambda dense: dense,
                 activation: Callable[[torch.Tensor], torch.Tensor] = lambda x: x,
                 call: Callable[[ExpertCall], ExpertCall] = lambda call: call,
                 bound: float = 0.02) -> None:  # fmt: skip
        self.weights, self.activation, self.call, self.error_bound = weights, activation, call, bound

    def probe(self, device: Device, shape: ExpertShape) -> Presence:
        return Presence(missing=None, versions={})

    def prepare(self, packed: PackedExperts, shape: ExpertShape, limit: float | None) -> DenseExperts:
        return self.weights(Dequantised(torch.float32).prepare(packed, shape, limit))

    def run(self, prepared: DenseExperts, call: ExpertCall) -> torch.Tensor:
        call = self.call(call)
        out = torch.zeros(call.x.shape, dtype=torch.float32)
        for token in range(call.x.shape[0]):
            for expert, weight in zip(call.topk_ids[token].tolist(), call.topk_weights[token], strict=True):
                if expert < 0:
                    continue
                hidden = swiglu(self.activation(call.x[token].float()) @ prepared.w13[expert].T, call.limit)
                out[token] += weight * (self.activation(hidden) @ prepared.w2[expert].T)
        return out.to(call.x.dtype)


def test_right_candidates_pass(expected: Expected) -> None:
    for candidate in (Reference(), Dequantised(torch.bfloat16), Dequantised(torch.float32)):
        verdict = check_candidate(candidate, CPU, expected, must_repeat=True)
        if candidate.name == "dequantised" and candidate.dtype == torch.float32:  # type: ignore[union-attr]
            assert "raised RuntimeError" in str(verdict.problem)  # bf16 x does not multiply with fp32 weights
            continue
        assert verdict.passed, verdict.problem
        assert set(verdict.times_s) == {"6 tokens", "48 tokens"} and min(verdict.times_s.values()) > 0


def test_fp8_activations_pass_within_their_bound_and_not_within_bf16s(expected: Expected) -> None:
    bound = B12x.error_bound
    verdict = check(Simulated(activation=mxfp8, bound=bound), expected)
    assert verdict.passed, verdict.problem
    worst = max(verdict.errors.values())
    assert bound / 4 < worst < bound, "the bound must be what FP8 rounding explains, not far above it"
    assert not check(Simulated(activation=mxfp8), expected).passed


def swap(dense: DenseExperts) -> DenseExperts:
    return replace(dense, w13=torch.cat(list(reversed(dense.w13.chunk(2, dim=1))), dim=1))


def shift(dense: DenseExperts) -> DenseExperts:
    return replace(dense, w2=dense.w2.roll(1, 0))


def one_group(dense: DenseExperts) -> DenseExperts:
    w2 = dense.w2.clone()
    w2[:, :, 64:96] *= 2
    return replace(dense, w2=w2)


MISTAKES: dict[str, dict[str, Any]] = {
    "gate and up swapped": {"weights": swap},
    "down of the next expert": {"weights": shift},
    "scales of one group doubled": {"weights": one_group},
    "no clamp": {"call": lambda call: replace(call, limit=None)},
    "unweighted": {"call": lambda call: replace(call, topk_weights=torch.ones_like(call.topk_weights))},
    "last choice dropped": {"call": lambda call: replace(call, topk_ids=call.topk_ids[:, :-1],
                                                         topk_weights=call.topk_weights[:, :-1])},
    "normalised weights": {"call": lambda call: replace(
        call, topk_weights=call.topk_weights / call.topk_weights.sum(1, keepdim=True).clamp_min(1e-9))},
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_even_by_the_widest_bound(mistake: str, expected: Expected) -> None:
    verdict = check(Simulated(**MISTAKES[mistake], bound=0.08), expected)
    assert verdict.problem is not None and "relative error must be at most 0.08, got" in verdict.problem


class Restless(Dequantised):
    """Adds in another order each time, as a kernel with atomic additions does."""

    name = "restless"
    calls = 0

    def run(self, prepared: DenseExperts, call: ExpertCall) -> torch.Tensor:
        self.calls += 1
        out = super().run(prepared, call)
        return out.float().mul(1 + 2**-6 * (self.calls % 2)).to(out.dtype)


def test_other_bits_at_a_second_call_are_refused_unless_allowed(expected: Expected) -> None:
    verdict = check(Restless(torch.bfloat16), expected)
    assert verdict.problem == "6 tokens: gives other bits when it is called again"
    assert check_candidate(Restless(torch.bfloat16), CPU, expected, must_repeat=False).passed


class Raising(Dequantised):
    def run(self, prepared: DenseExperts, call: ExpertCall) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal instruction was encountered")


class NotZero(Dequantised):
    def run(self, prepared: DenseExperts, call: ExpertCall) -> torch.Tensor:
        return super().run(prepared, call) + (1e-6 if not prepared.w13.any() else 0)


def test_what_a_kernel_raises_and_a_shard_of_padding_that_is_not_zero_are_named(expected: Expected) -> None:
    raised = check(Raising(torch.bfloat16), expected)
    assert raised.problem == "raised RuntimeError: CUDA error: an illegal instruction was encountered"
    problem = check(NotZero(torch.bfloat16), expected).problem
    assert problem is not None and problem.startswith("zero weights: must give exact zeros, got up to ")


def test_experts_of_other_ranks_add_nothing() -> None:
    """Two groups of experts: their parts sum to the whole; a token without local experts gets exact zeros."""
    whole = replace(SHAPE, num_experts=6)
    packed = draw_packed(whole, HERE)
    call = draw_call(whole, 48, dtype=torch.float32, device=HERE, limit=LIMIT, seed=3)
    parts = []
    for first in (0, 3):
        part = PackedExperts(
            **{
                name: getattr(packed, name)[first : first + 3]
                for name in ("w13", "w13_scale", "w2", "w2_scale")
            }
        )
        ids = torch.where((call.topk_ids >= first) & (call.topk_ids < first + 3), call.topk_ids - first, -1)
        part_call = replace(call, topk_ids=ids)
        dense = Dequantised(torch.float32)
        outputs = [Reference().run(part, part_call), dense.run(dense.prepare(part, whole, LIMIT), part_call)]
        assert torch.allclose(*outputs, rtol=1e-4, atol=1e-3)
        assert not outputs[1][(ids < 0).all(1)].any() and (ids < 0).all(1).any()
        parts.append(outputs[0])
    assert torch.allclose(parts[0] + parts[1], Reference().run(packed, call), rtol=1e-4, atol=1e-3)


def test_padding_576_to_640_is_exact() -> None:
    """TP 4 without expert groups: 2304 / 4 = 576, padded for tiles of 128."""
    shape = ExpertShape(num_experts=2, hidden=128, width=576, top_k=2)
    packed = draw_packed(shape, HERE)
    padded = pad_width(packed, 128)
    assert padded.width == 640 and pad_width(padded, 128) is padded
    for expert in range(2):
        gate, up = padded.gate_up(expert).chunk(2)
        assert torch.equal(torch.cat([gate[:576], up[:576]]), packed.gate_up(expert))
        assert not gate[576:].any() and not up[576:].any()
        assert torch.equal(padded.down(expert)[:, :576], packed.down(expert))
        assert not padded.down(expert)[:, 576:].any()
    assert (padded.w13_scale.view(2, 2, 640, 4)[:, :, 576:] == 127).all()
    call = draw_call(shape, 9, dtype=torch.float64, device=HERE, limit=LIMIT, seed=1)
    assert torch.allclose(Reference().run(padded, call), Reference().run(packed, call), rtol=1e-5, atol=1e-4)


def test_shapes_that_do_not_belong_together_are_named() -> None:
    packed = draw_packed(SHAPE, HERE)
    with pytest.raises(
        ValueError, match=r"w2 must have shape \(6, 256, 48\) beside w13 .* got \(6, 256, 32\)"
    ):
        replace(packed, w2=packed.w2[:, :, :32])


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Marlin(), "needs sm_90 or sm_12x, on cpu"),
        (FlashinferMxfp4(CPU), "needs sm_90 or sm_12x, on cpu"),
        (B12x(), "needs sm_120 or sm_121, on cpu"),
    ],
)
def test_a_gpu_backend_says_why_it_is_not_there(candidate: Any, words: str, expected: Expected) -> None:
    verdict = check(candidate, expected)
    assert not verdict.present and verdict.problem == words and verdict.times_s == {}


def test_a_missing_package_and_a_width_are_named_on_a_gb10() -> None:
    spark = Device(kind="cuda", capability=(12, 1))
    assert "b12x is not installed" in str(B12x().probe(spark, replace(SHAPE, width=576)).missing)
    missing = Marlin().probe(spark, replace(SHAPE, hidden=100)).missing
    assert missing == "needs a hidden width in multiples of 64, got 100"
    assert "flashinfer-python is not installed" in str(FlashinferMxfp4(spark).probe(spark, SHAPE).missing)
    assert FlashinferMxfp4(spark).error_bound == B12x.error_bound
    assert FlashinferMxfp4(Device(kind="cuda", capability=(9, 0))).error_bound == Marlin.error_bound
