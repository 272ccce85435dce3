"""wo_a in FP8: what SGLang loaded comes back exactly, the check names mistakes, and the ranks agree."""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.errors import DenseBackendError, SettingError  # noqa: E402
from sgl_ext.wo_a import boot_choice  # noqa: E402
from sgl_ext.wo_a.boot_choice import (  # noqa: E402
    Bf16,
    GroupShape,
    check_form,
    choose_form,
    describe_wo_a,
    draw_weight,
    pack_chosen,
    rank_shape,
    read_wo_a,
)
from sgl_ext.wo_a.repack import BLOCK, repack  # noqa: E402
from tests.sgl_ext.gloo_ranks import answers_of_ranks  # noqa: E402
from tests.sgl_ext.run_interpreted import run_interpreted  # noqa: E402

CPU = torch.device("cpu")
SHAPE = GroupShape(groups=3, features=64, inputs=96)
SIZES = (6, 48)


def einsum(rows: torch.Tensor, weight: torch.Tensor, **_: object) -> torch.Tensor:
    return torch.einsum("tgd,grd->tgr", rows, weight)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    boot_choice._state().clear()
    yield
    boot_choice._state().clear()


def test_weights_that_were_e4m3_come_back_exactly() -> None:
    weight = draw_weight(SHAPE, CPU)
    packed = repack(weight)
    assert packed is not None and torch.equal(packed.dequantised(), weight)
    assert packed.num_bytes * 2 < weight.nbytes * 1.01
    # 240 times a power of two: its block's top value does not fit e4m3's top exponent.
    block = torch.full((1, BLOCK, BLOCK), 2.0**-5)
    block[0, 0, 0] = 240 * 2.0**-4
    packed = repack(block.to(torch.bfloat16))
    assert packed is not None and torch.equal(packed.dequantised(), block.to(torch.bfloat16))
    assert float(packed.codes.float().max()) == 240


def test_weights_that_are_no_e4m3_are_left_alone() -> None:
    draw = torch.Generator().manual_seed(1)
    assert repack(torch.randn((1, BLOCK, BLOCK), generator=draw).to(torch.bfloat16)) is None
    spoiled = draw_weight(SHAPE, CPU)
    spoiled[2, 40, 50] = 1.0078125  # more bits than e4m3 has
    assert repack(spoiled) is None
    assert repack(draw_weight(SHAPE, CPU)[:, :40]) is None
    assert repack(torch.full((1, BLOCK, BLOCK), torch.inf, dtype=torch.bfloat16)) is None


def test_sglangs_own_form_passes_and_is_timed() -> None:
    verdict = check_form(Bf16(einsum), SHAPE, SIZES, CPU)
    assert verdict.passed, verdict.problem
    assert set(verdict.errors) == set(verdict.times_s) == {"6 tokens", "48 tokens"}


def raises(*_: object, **__: object) -> torch.Tensor:
    raise RuntimeError("no kernel image")


ALTERNATING = itertools.cycle((1.0, 1.0078125))
MISTAKES: dict[str, tuple[Callable[..., Any], str]] = {
    "groups swapped": (lambda rows, w, **_: einsum(rows.roll(1, 1), w), "relative error"),
    "features rolled": (lambda rows, w, **_: einsum(rows, w).roll(1, 2), "relative error"),
    "a block of inputs left out": (
        lambda rows, w, **_: einsum(rows[..., BLOCK:], w[..., BLOCK:]),
        "relative error",
    ),
    "not finite": (lambda rows, w, **_: einsum(rows, w) / 0, "got inf"),
    "another type": (lambda rows, w, **_: einsum(rows, w).float(), "must give"),
    "other bits each time": (
        lambda rows, w, **_: einsum(rows, w) * next(ALTERNATING),
        "gives other bits",
    ),
    "padding is not zero": (
        lambda rows, w, **_: einsum(rows, w) + 1e-30,
        "zero weights must give exact zeros",
    ),
    "raises": (raises, "raised RuntimeError: no kernel image"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_every_mistake_is_named(name: str) -> None:
    product, message = MISTAKES[name]
    verdict = check_form(Bf16(product), SHAPE, SIZES, CPU)
    assert message in str(verdict.problem) and verdict.times_s == {}


def test_shapes_of_the_real_model() -> None:
    padded = SimpleNamespace(num_attention_heads=72, head_dim=512, o_groups=9, o_lora_rank=1024)
    assert rank_shape(padded, 3) == GroupShape(groups=3, features=1024, inputs=4096)
    plain = SimpleNamespace(num_attention_heads=64, head_dim=512, o_groups=8, o_lora_rank=1024)
    assert rank_shape(plain, 4) == GroupShape(groups=2, features=1024, inputs=4096)


def test_only_a_known_form_is_taken() -> None:
    assert read_wo_a({}) == "auto" and read_wo_a({"SPARKCTL_WO_A": "fp8"}) == "fp8"
    with pytest.raises(SettingError, match="must be one of bf16, fp8, auto, got 'fp4'"):
        read_wo_a({"SPARKCTL_WO_A": "fp4"})


def spoiled_layers() -> list[Any]:
    weight = draw_weight(SHAPE, CPU)
    layers = []
    for idx in range(2):
        own = weight.clone()
        own[0, 0, 0] = 1.0 if idx == 0 else 1.0078125
        wo_a = SimpleNamespace(weight=torch.nn.Parameter(own.view(-1, SHAPE.inputs), requires_grad=False))
        attention = SimpleNamespace(wo_a=wo_a, n_local_groups=SHAPE.groups, o_lora_rank=SHAPE.features)
        layers.append(SimpleNamespace(self_attn=attention))
    return layers


def test_weights_that_would_change_stay_bf16_or_are_refused() -> None:
    layers = spoiled_layers()
    boot_choice._state().update(chosen="fp8", wanted="auto")
    pack_chosen(layers)
    assert all(layer.self_attn.wo_a.weight.dtype == torch.bfloat16 for layer in layers)
    assert "wo_a of layer 1 is no e4m3" in str(describe_wo_a()["kept_bf16"])
    boot_choice._state().update(wanted="fp8")
    with pytest.raises(
        DenseBackendError, match="must hold the checkpoint's weights exactly, got wo_a of layer 1"
    ):
        pack_chosen(layers)


class Slow(Bf16):
    """The other form, in plain PyTorch: passes, and takes longer."""

    name = "fp8"

    def run(self, prepared: Any, rows: torch.Tensor) -> torch.Tensor:
        for _ in range(40):
            super().run(prepared, rows)
        return super().run(prepared, rows)


@pytest.mark.parametrize(("ranks", "bad"), [(2, None), (3, 1)])
def test_gloo_ranks_take_one_form_or_all_end_by_name(ranks: int, bad: int | None, tmp_path: Path) -> None:
    def vote(rank: int, group: Any) -> str:
        forms = (Bf16(einsum), Slow(raises if rank == bad else einsum))
        parallel = SimpleNamespace(tp_rank=rank)
        return choose_form(forms, SHAPE, parallel, device=CPU, group=group, wanted="auto")

    (answer,) = set(answers_of_ranks(ranks, vote, tmp_path / "store"))
    if bad is None:
        assert answer == "bf16"
    else:
        assert answer.startswith(
            "Every rank must come to the same verdict on the form of wo_a fp8, got passed"
        )
        assert f"no kernel image with sglang 0.5.23 (rank {bad} on " in answer


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton: make up installs it")
def test_kernels_interpreted() -> None:
    run_interpreted("tests.sgl_ext.wo_a.check_kernels")
