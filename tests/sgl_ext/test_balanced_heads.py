"""Padded heads: the plan, the tensors, and that a padded attention output is the unpadded one, to the bit."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from sgl_ext.balanced_heads import pad_config, pad_tensor, padded_plan, plan_heads


@pytest.mark.parametrize(
    ("heads", "groups", "ranks", "padded"),
    [
        (64, 8, 3, (72, 9)),
        (64, 8, 4, (64, 8)),
        (64, 8, 2, (64, 8)),
        (16, 8, 3, (18, 9)),
        (64, 8, 5, (80, 10)),
    ],
)
def test_fewest_whole_groups(heads: int, groups: int, ranks: int, padded: tuple[int, int]) -> None:
    plan = plan_heads(heads, groups, ranks)
    assert (plan.padded_heads, plan.padded_groups) == padded
    assert plan.padded_heads % ranks == 0 and plan.padded_groups % ranks == 0


def test_config_is_padded_once() -> None:
    config = SimpleNamespace(num_attention_heads=64, o_groups=8)
    pad_config(config, 3)
    pad_config(config, 3)
    assert (config.num_attention_heads, config.o_groups) == (72, 9)
    assert padded_plan(config) == plan_heads(64, 8, 3)


def test_shapes_and_fill_at_the_real_size() -> None:
    plan = plan_heads(64, 8, 3)
    fp8 = torch.ones(32768, 64).to(torch.float8_e4m3fn)
    wq_b = pad_tensor("layers.0.attn.wq_b.weight", fp8, plan)
    assert wq_b.shape == (36864, 64) and wq_b.dtype == fp8.dtype
    assert torch.equal(wq_b[:32768].view(torch.uint8), fp8.view(torch.uint8))
    assert not wq_b[32768:].float().any()
    scale = torch.full((1024, 2), 120, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    padded_scale = pad_tensor("mtp.1.attn.wq_b.scale", scale, plan)
    assert padded_scale.shape == (1152, 2)
    assert (padded_scale[1024:].view(torch.uint8) == 127).all()
    assert pad_tensor("layers.0.attn.wo_a.weight", torch.ones(8192, 8), plan).shape == (9216, 8)
    assert pad_tensor("layers.0.attn.wo_b.weight", torch.ones(8, 8192), plan).shape == (8, 9216)
    assert pad_tensor("layers.0.attn.attn_sink", torch.ones(64), plan).shape == (72,)


def test_other_tensors_pass_untouched() -> None:
    plan = plan_heads(64, 8, 3)
    for name in (
        "layers.2.attn.indexer.wq_b.weight",
        "layers.0.attn.wq_a.weight",
        "layers.0.ffn.gate.weight",
    ):
        tensor = torch.ones(64, 64)
        assert pad_tensor(name, tensor, plan) is tensor


def test_a_tensor_that_does_not_split_is_named() -> None:
    with pytest.raises(ValueError, match=r"layers\.0\.attn\.wo_a\.weight must split into 8 parts"):
        pad_tensor("layers.0.attn.wo_a.weight", torch.ones(9, 8), plan_heads(64, 8, 3))


def test_output_of_padded_heads_is_the_same_to_the_bit() -> None:
    """wo_b(wo_a(o)) over groups split among 3 ranks and summed, with zero heads in the last group."""
    torch.manual_seed(0)
    heads, groups, width, rank_dim, hidden = 16, 8, 32, 8, 64
    plan = plan_heads(heads, groups, 3)
    o = torch.randn(5, heads, width)
    wo_a, wo_b = (
        torch.randn(groups * rank_dim, heads * width // groups),
        torch.randn(hidden, groups * rank_dim),
    )
    o_padded = torch.cat([o, torch.randn(5, plan.padded_heads - heads, width)], dim=1)
    wo_a_padded = pad_tensor("layers.0.attn.wo_a.weight", wo_a, plan)
    wo_b_padded = pad_tensor("layers.0.attn.wo_b.weight", wo_b, plan)

    def low_rank(values: torch.Tensor, weight: torch.Tensor, count: int) -> torch.Tensor:
        return torch.einsum("tgd,grd->tgr", values.reshape(5, count, -1), weight.view(count, rank_dim, -1))

    plain = low_rank(o, wo_a, groups)
    padded = low_rank(o_padded, wo_a_padded, plan.padded_groups)
    assert torch.equal(padded[:, :groups], plain)
    assert not padded[:, groups:].any()  # wo_a's zero rows, whatever the zero heads attended to
    per_group = torch.einsum("tgr,hgr->gth", padded, wo_b_padded.view(hidden, plan.padded_groups, rank_dim))
    real = torch.einsum("tgr,hgr->gth", plain, wo_b.view(hidden, groups, rank_dim))
    assert torch.equal(per_group[:groups], real)
    assert not per_group[groups:].any()
