"""The CPU forms against definitions written another way (sgl_ext.reference), and their edge cases."""

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgl_ext.dequantised_weights import dequantise_stream
from sgl_ext.errors import SettingError
from sgl_ext.kernels.clamped_swiglu import swiglu
from sgl_ext.kernels.hyper_connections import split_mixes
from sgl_ext.kernels.index_key_slots import encode_e2m1, load_keys, store_keys
from sgl_ext.kernels.kv_slots import load_rows, store_rows
from sgl_ext.kernels.rope import rotate_pairs
from sgl_ext.kernels.sparse_attention import attend_rows
from sgl_ext.reference.checkpoint import multiply_out
from sgl_ext.reference.rounding import round_fp4, round_index_vector, round_slot

PAGE = 4
CODES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def test_a_kv_slot_gives_back_the_rounded_row() -> None:
    torch.manual_seed(0)
    rows = torch.randn(6, 512) * torch.logspace(-6, 3, 6).unsqueeze(1)
    rows[0, :64] = 0
    cache = torch.zeros(3, PAGE * 584 + 16, dtype=torch.uint8)  # pages may be padded
    slots = torch.tensor([11, 0, 3, 4, 7, 8])
    store_rows(cache, slots, rows, PAGE)
    assert torch.equal(load_rows(cache, slots, PAGE), round_slot(rows))
    assert not cache[:, PAGE * 584 :].any()


def test_a_negative_slot_stores_nothing() -> None:
    cache = torch.zeros(1, PAGE * 584, dtype=torch.uint8)
    store_rows(cache, torch.tensor([-1, -1]), torch.ones(2, 512), PAGE)
    assert not cache.any()


def test_an_index_key_slot_gives_back_the_rounded_key() -> None:
    torch.manual_seed(1)
    keys = torch.randn(5, 128).to(torch.bfloat16)
    cache = torch.zeros(2, PAGE * 68, dtype=torch.uint8)
    slots = torch.tensor([7, 1, 0, 5, 2])
    store_keys(cache, slots, keys, PAGE, ties_to_even=True)
    assert torch.equal(load_keys(cache, slots, PAGE, CODES), round_index_vector(keys))


@settings(max_examples=200)
@given(st.floats(min_value=-8, max_value=8, width=32))
def test_fp4_rounding_agrees(value: float) -> None:
    coded = CODES[encode_e2m1(torch.tensor([value]), ties_to_even=True).long()]
    assert coded.abs().item() == round_fp4(torch.tensor([value])).abs().item()


def test_fp4_ties() -> None:
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert CODES[encode_e2m1(ties, ties_to_even=True).long()].tolist() == [0, 1, 1, 2, 2, 4, 4]
    assert CODES[encode_e2m1(ties, ties_to_even=False).long()].tolist() == [0, 0.5, 1, 1.5, 2, 3, 4]


def test_attention_with_a_sink_alone_gives_zeros() -> None:
    q = torch.randn(2, 3, 8)
    kv = torch.randn(4, 8)
    nothing = torch.full((2, 5), -1)
    assert not attend_rows(q, kv, nothing, torch.zeros(3), 1.0).any()


def test_attention_is_a_softmax_with_one_more_column() -> None:
    torch.manual_seed(2)
    q, kv, sink = torch.randn(70, 3, 8), torch.randn(9, 8), torch.randn(3)
    rows = torch.stack([torch.randperm(9)[:5] for _ in range(70)])
    rows[0, 3:] = -1
    out = attend_rows(q, kv, rows, sink, 0.5)
    for token in (0, 69):
        keys = kv[rows[token][rows[token] >= 0]]
        scores = torch.cat([q[token] @ keys.T * 0.5, sink.unsqueeze(1)], dim=1)
        assert torch.allclose(out[token], scores.softmax(1)[:, :-1] @ keys, atol=1e-6)


def test_rotation_and_its_inverse() -> None:
    table = torch.polar(torch.ones(10, 4), torch.rand(10, 4))
    x, positions = torch.randn(3, 2, 8), torch.tensor([9, 0, 4])
    back = rotate_pairs(rotate_pairs(x, table, positions), table.conj(), positions)
    assert torch.allclose(back, x, atol=1e-6)


def test_mixing_matrix_is_doubly_stochastic() -> None:
    pre, post, comb = split_mixes(torch.randn(5, 24), torch.ones(3), torch.zeros(24), 4, 20, 1e-6)
    assert pre.shape == post.shape == (5, 4)
    assert torch.allclose(comb.sum(1), torch.ones(5, 4), atol=1e-4)
    assert torch.allclose(comb.sum(2), torch.ones(5, 4), atol=1e-3)


def test_swiglu_clamps_one_side_of_the_gate_and_both_of_up() -> None:
    out = swiglu(torch.tensor([100.0, -100.0, 20.0, -20.0]), 10.0)
    assert out.tolist() == pytest.approx([10 / (1 + 2.718281828**-10) * 10, 0.0], abs=1e-4)


def test_dequantised_weights_are_exact_in_any_order() -> None:
    torch.manual_seed(3)
    fp8 = torch.randn(64, 96).to(torch.float8_e4m3fn)
    fp8_scale = torch.randint(110, 130, (2, 3), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    fp4 = torch.randint(-128, 128, (4, 32), dtype=torch.int8)
    fp4_scale = torch.randint(110, 130, (4, 2), dtype=torch.uint8).view(torch.float8_e8m0fnu)
    table = torch.ones(3, 32).to(torch.float8_e4m3fn)
    stream = [
        ("a.wq_b.scale", fp8_scale),
        ("e.w1.weight", fp4),
        ("layers.1.engram.embed.weight", table),
        ("a.wq_b.weight", fp8),
        ("e.w1.scale", fp4_scale),
        ("norm.weight", torch.ones(3)),
    ]
    out = dict(dequantise_stream(stream))
    assert set(out) == {"a.wq_b.weight", "e.w1.weight", "layers.1.engram.embed.weight", "norm.weight"}
    assert torch.equal(out["a.wq_b.weight"].float(), multiply_out(fp8, fp8_scale))
    assert torch.equal(out["e.w1.weight"].float(), multiply_out(fp4, fp4_scale))
    assert out["layers.1.engram.embed.weight"] is table


def test_a_weight_without_its_scale_is_named() -> None:
    with pytest.raises(SettingError, match=r"got only a\.wq_b\.weight"):
        list(dequantise_stream([("a.wq_b.weight", torch.ones(32, 32).to(torch.float8_e4m3fn))]))
