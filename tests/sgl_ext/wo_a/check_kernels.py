"""The form fp8 of wo_a in Triton's interpreter: boot check, exact weights, hook. In a process of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sgl_ext.wo_a import boot_choice
from sgl_ext.wo_a.boot_choice import Fp8, GroupShape, check_form, draw_weight
from sgl_ext.wo_a.kernels import dequantise_groups, multiply_groups
from sgl_ext.wo_a.packed_layers import KERNEL_ROWS, pack_layers, packed_layers
from sgl_ext.wo_a.repack import repack

SHAPE = GroupShape(groups=2, features=64, inputs=256)
CPU = torch.device("cpu")


def einsum(rows: torch.Tensor, weight: torch.Tensor, **_: object) -> torch.Tensor:
    """SGLang's product on a GPU without a path of its own for the shape."""
    return torch.einsum("tgd,grd->tgr", rows, weight)


def draw_rows(tokens: int) -> torch.Tensor:
    draw = torch.Generator().manual_seed(tokens)
    return torch.randn((tokens, SHAPE.groups, SHAPE.inputs), generator=draw).to(torch.bfloat16)


def check_all() -> None:
    verdict = check_form(Fp8(einsum), SHAPE, (6, 48, KERNEL_ROWS + 1), CPU)
    assert verdict.passed, verdict
    assert 0 < verdict.errors["6 tokens"] < 0.005 and set(verdict.times_s) == {"6 tokens", "48 tokens"}
    check_weights()
    check_strides()
    check_hook()


def check_weights() -> None:
    weight = draw_weight(SHAPE, CPU)
    packed = repack(weight)
    assert packed is not None
    assert torch.equal(dequantise_groups(packed, torch.empty_like(weight)), weight)
    moved = check_form(WrongScales(einsum), SHAPE, (6,), CPU)
    assert "6 tokens: relative error must be at most 0.01" in str(moved.problem), moved


class WrongScales(Fp8):
    """Scales of the next block of inputs."""

    def prepare(self, weight: torch.Tensor) -> Any:
        layers, packed = super().prepare(weight)
        packed.exponents.copy_(packed.exponents.roll(1, 2))
        return layers, packed


def check_strides() -> None:
    """Rows as attention gives them at other strides: a slice of wider ones."""
    packed = repack(draw_weight(SHAPE, CPU))
    assert packed is not None
    wide = torch.randn((19, SHAPE.groups, 2 * SHAPE.inputs)).to(torch.bfloat16)
    rows = wide[..., : SHAPE.inputs]
    assert torch.equal(multiply_groups(rows, packed), multiply_groups(rows.contiguous(), packed))
    assert multiply_groups(rows[:0], packed).shape == (0, SHAPE.groups, SHAPE.features)


def layer_of(weight: torch.Tensor) -> Any:
    wo_a = torch.nn.Linear(1, 1, bias=False)
    wo_a.weight = torch.nn.Parameter(weight.view(-1, weight.shape[2]), requires_grad=False)
    attention = SimpleNamespace(wo_a=wo_a, n_local_groups=SHAPE.groups, o_lora_rank=SHAPE.features)
    return SimpleNamespace(self_attn=attention)


def check_hook() -> None:
    from sgl_ext.hooks.wo_a_matmul import find_other_form, multiply_packed

    weight = draw_weight(SHAPE, CPU)
    layers = [layer_of(weight.clone()), layer_of(weight.roll(32, 1).contiguous())]
    model = SimpleNamespace(model=SimpleNamespace(layers=layers))
    scheduler = SimpleNamespace(tp_worker=SimpleNamespace(model_runner=SimpleNamespace(model=model)))
    plain = [layer.self_attn.wo_a.weight.view(SHAPE.groups, SHAPE.features, -1) for layer in layers]
    assert find_other_form(scheduler) is None
    boot_choice._state().update(chosen="fp8", wanted="auto")
    assert "wo_a of layer 0 in torch.bfloat16" in str(find_other_form(scheduler))
    boot_choice.pack_chosen(layers)
    told = boot_choice.describe_wo_a()
    assert find_other_form(scheduler) is None and told["layers"] == 2 and told["kept_bf16"] is None
    assert told["packed_bytes"] == 2 * (weight.numel() + weight.numel() // 1024)
    for layer, wanted in zip(layers, plain, strict=True):
        held = layer.self_attn.wo_a.weight.view(SHAPE.groups, SHAPE.features, -1)
        assert held.dtype == torch.float8_e4m3fn
        for tokens in (6, KERNEL_ROWS + 3):
            rows = draw_rows(tokens)
            seen, own = multiply_packed(einsum, rows, held), einsum(rows, wanted)
            error = (seen.float() - own.float()).norm() / own.float().norm()
            assert error < 0.005 and (tokens == 6 or torch.equal(seen, own)), (tokens, error)
    other = draw_weight(SHAPE, CPU)  # a layer that was not packed, a draft's for instance
    assert torch.equal(multiply_packed(einsum, draw_rows(6), other), einsum(draw_rows(6), other))
    layers[1].self_attn.wo_a.weight = torch.nn.Parameter(
        layers[1].self_attn.wo_a.weight.clone(), requires_grad=False
    )
    assert "layer 1 at another address" in str(find_other_form(scheduler))
    assert len(packed_layers().by_address) == 2 and pack_layers([]) is None
