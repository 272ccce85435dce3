"""The boot check of FP8 linear layers: an honest kernel passes, each mistake is named, the ranks agree."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from sgl_ext.dense_fp8 import boot_choice
from sgl_ext.dense_fp8.boot_choice import DENSE, check_linear, choose_for_rank, choose_together
from sgl_ext.dense_fp8.linear_cases import (
    BLOCK,
    BlockWeight,
    LinearShape,
    draw_rows,
    draw_weight,
    rank_shapes,
)
from sgl_ext.dense_fp8.stock_linear import stock_candidates
from sgl_ext.errors import DenseBackendError
from sgl_ext.experts.candidate import Device, Presence
from sgl_ext.experts.choose import Vote, choose_backend

CPU = torch.device("cpu")
HERE = Device(kind="cpu", capability=None)
SHAPES = (
    LinearShape(name="wide", outputs=256, inputs=192),
    LinearShape(name="narrow", outputs=96, inputs=384),
)
SIZES = (6, 48)
V41 = SimpleNamespace(
    hidden_size=5120, q_lora_rank=1536, head_dim=512, num_attention_heads=72, o_groups=9, o_lora_rank=1024,
    n_shared_experts=1, moe_intermediate_size=2304,
)  # fmt: skip


def round_rows(rows: torch.Tensor) -> torch.Tensor:
    """Inputs as a kernel rounds them: e4m3, a power of two for each group of 32."""
    tiles = rows.float().unflatten(1, (-1, BLOCK))
    scale = torch.exp2(torch.ceil(torch.log2(tiles.abs().amax(-1, keepdim=True).clamp_min(1e-12) / 448)))
    return ((tiles / scale).to(torch.float8_e4m3fn).float() * scale).flatten(1)


class Kernel:
    """Plain PyTorch with the rounding of an FP8 kernel; `wrong` changes weight, rows or output."""

    error_bound = 0.08

    def __init__(self, name: str = "honest", **wrong: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.name = name
        self.wrong = wrong

    def probe(self, device: Device) -> Presence:
        return Presence(missing=None, versions={"kernel": "1"})

    def prepare(self, weight: BlockWeight, shape: LinearShape) -> torch.Tensor:
        scale = self.wrong.get("scale", lambda scale: scale)(weight.scale)
        return BlockWeight(weight=weight.weight, scale=scale).dequantised()

    def run(self, prepared: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        rounded = self.wrong.get("rows", lambda rows: rows)(round_rows(rows))
        output = (rounded @ prepared.T).to(rows.dtype)
        return self.wrong.get("output", lambda output: output)(output)


def test_rounding_alone_passes_and_is_timed() -> None:
    verdict = check_linear(Kernel(), HERE, SHAPES, SIZES, CPU)
    assert verdict.passed, verdict.problem
    assert set(verdict.errors) == {f"{shape.name}, {size} tokens" for shape in SHAPES for size in SIZES}
    assert 0.01 < max(verdict.errors.values()) < 0.06  # so that the bound is no idle one
    assert set(verdict.times_s) == {"6 tokens", "48 tokens"} and min(verdict.times_s.values()) > 0


def raised(output: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no kernel image")


MISTAKES: dict[str, tuple[Kernel, str]] = {
    "scales of the next row block": (Kernel(scale=lambda s: s.roll(1, 0)), "relative error"),
    "scales of the next column block": (Kernel(scale=lambda s: s.roll(1, 1)), "relative error"),
    "one block's scale doubled": (Kernel(scale=lambda s: s * (1 + (s == s[0, 0]).float())), "relative error"),
    "groups of inputs swapped": (
        Kernel(rows=lambda r: r.unflatten(1, (-1, BLOCK)).flip(1).flatten(1)),
        "relative error",
    ),
    "one scale for all groups of a token": (
        Kernel(
            rows=lambda r: (r / (s := r.abs().amax(1, keepdim=True) / 448)).to(torch.float8_e5m2).float() * s
        ),
        "relative error",
    ),
    "output features rolled": (Kernel(output=lambda o: o.roll(1, 1)), "relative error"),
    "not finite": (Kernel(output=lambda o: o / 0), "got inf"),
    "another type": (Kernel(output=lambda o: o.float()), "must give"),
    "other bits each time": (
        Kernel(output=lambda o: o + torch.rand(1, dtype=o.dtype) * 1e-2 * o.abs().mean()),
        "gives other bits",
    ),
    "padding is not zero": (Kernel(output=lambda o: o + 1e-30), "zero weights must give exact zeros"),
    "raises": (Kernel(output=raised), "raised RuntimeError: no kernel image"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named(name: str) -> None:
    kernel, message = MISTAKES[name]
    verdict = check_linear(kernel, HERE, SHAPES, SIZES, CPU)
    assert not verdict.passed and message in str(verdict.problem), verdict
    assert verdict.times_s == {}


def parallel(rank: int = 0, size: int = 1) -> SimpleNamespace:
    return SimpleNamespace(tp_rank=rank, tp_size=size)


SMALL = SimpleNamespace(
    hidden_size=128, q_lora_rank=64, head_dim=64, num_attention_heads=4, o_groups=2, o_lora_rank=32,
    n_shared_experts=1, moe_intermediate_size=64,
)  # fmt: skip


def choose(candidates: list[Kernel], wanted: str = "auto") -> str:
    return choose_together(
        candidates, HERE, SMALL, parallel(), device=CPU, group=None, wanted=wanted
    )  # fmt: skip


def test_the_one_that_passes_is_taken_and_reported() -> None:
    boot_choice._state().clear()
    broken = Kernel("fast", output=lambda output: output * 2)
    assert choose([broken, Kernel("slow")]) == "slow"
    told = boot_choice.describe_dense()
    assert told["chosen"] == "slow" and told["wanted"] == "auto"
    problems = {item["name"]: item["problem"] for item in told["verdicts"]}  # type: ignore[attr-defined]
    assert problems["slow"] is None and "relative error" in problems["fast"]
    boot_choice._state().clear()


def test_one_that_fails_is_refused_where_it_is_asked_for_and_where_no_other_is_left() -> None:
    broken = Kernel("fast", output=lambda output: output * 2)
    with pytest.raises(DenseBackendError, match="FP8 linear backend fast must pass") as caught:
        choose([broken, Kernel("slow")], wanted="fast")
    assert "server.fp8_gemm_backend" in caught.value.hint
    with pytest.raises(DenseBackendError, match="At least one FP8 linear backend must pass"):
        choose([broken])


def test_ranks_that_disagree_are_named() -> None:
    verdicts = [
        check_linear(kernel, HERE, SHAPES, SIZES, CPU)
        for kernel in (Kernel("a"), Kernel("a", output=lambda output: output * 2))
    ]
    votes = [
        Vote(rank=rank, host=f"spark-{rank}", wanted="auto", verdicts=(verdict,))
        for rank, verdict in enumerate(verdicts)
    ]
    with pytest.raises(
        DenseBackendError, match=r"same verdict on the FP8 linear backend a, .*rank 1 on spark-1"
    ):
        choose_backend(votes, DENSE)


def test_shapes_of_a_rank_of_three_with_padded_heads() -> None:
    seen = {shape.name: (shape.outputs, shape.inputs) for shape in rank_shapes(V41, 3)}
    assert seen == {
        "wqkv_a": (2048, 5120),
        "wq_b": (24 * 512, 1536),
        "wo_b": (5120, 3 * 1024),
        "shared gate and up": (1536, 5120),
        "shared down": (5120, 768),
    }


def test_weights_are_the_same_on_every_rank_and_fill_their_range() -> None:
    first, second = (draw_weight(SHAPES[0], CPU) for _ in range(2))
    assert torch.equal(first.dequantised(), second.dequantised())
    assert set(torch.log2(first.scale).flatten().tolist()) == {float(-power) for power in range(1, 8)}
    rows = draw_rows(SHAPES[0], 48, CPU, torch.bfloat16)
    assert rows.isfinite().all() and (rows[3].abs().amax() > 8 * rows[0].abs().amax())


BLOCKS_OF_32 = {"quant_method": "fp8", "weight_block_size": [32, 32], "scale_fmt": "ue8m0"}


@pytest.mark.parametrize(
    ("capability", "quant", "wanted", "is_ours"),
    [
        ((12, 1), BLOCKS_OF_32, "auto", True),
        ((9, 0), BLOCKS_OF_32, "auto", False),
        ((12, 1), BLOCKS_OF_32, "cutlass", False),  # named, and no candidate of ours: unchecked, as asked
        ((12, 1), {**BLOCKS_OF_32, "weight_block_size": [128, 128]}, "auto", False),
        ((12, 1), None, "auto", False),
    ],
)
def test_elsewhere_sglangs_own_choice_stands(
    capability: tuple[int, int],
    quant: object,
    wanted: str,
    is_ours: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No GPU is here: its capability is said to be one, and the checks on it are left out."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(boot_choice, "choose_together", lambda *candidates, **how: "triton")
    told: list[str] = []
    monkeypatch.setattr(boot_choice, "tell_sglang", told.append)
    device = torch.device("cuda", 0)
    chosen = choose_for_rank(SMALL, parallel(), device=device, group=None, wanted=wanted, quant=quant)
    assert (chosen, told) == (("triton", ["triton"]) if is_ours else (None, []))


def test_a_cpu_engine_keeps_sglangs_own() -> None:
    chosen = choose_for_rank(SMALL, parallel(), device=CPU, group=None, wanted="auto", quant=BLOCKS_OF_32)
    assert chosen is None


def test_candidates_say_where_they_run() -> None:
    spark, hopper = (Device(kind="cuda", capability=value) for value in ((12, 1), (9, 0)))
    missing = {item.name: item.probe(hopper).missing for item in stock_candidates({})}
    assert missing["triton"] is None or "sglang" in missing["triton"]
    assert missing["flashinfer_cutlass"] == "needs sm_12x, on sm_90"
    assert "needs" not in (stock_candidates({})[1].probe(spark).missing or "")
    assert str(stock_candidates({})[1].probe(HERE).missing).startswith("needs sm_9x or sm_12x")
