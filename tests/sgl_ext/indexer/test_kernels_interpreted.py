"""The live-length indexer in Triton's interpreter against plain PyTorch: scores, blocks, selection, ties."""

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")
pytest.importorskip("triton", reason="needs Triton, which comes with the engine: make up installs it")

from sgl_ext.indexer.reference import block_maxima, select_highest  # noqa: E402
from tests.sgl_ext.run_interpreted import run_interpreted  # noqa: E402

POISON = 1e30  # what a kernel must not read: past the live length


def bf16(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.bfloat16).float()


def test_reference_takes_what_torch_topk_takes_where_nothing_ties() -> None:
    scores = bf16(torch.arange(64.0)).flip(0).repeat(2, 1)
    seen = select_highest(scores, torch.tensor([64, 10]), 12)
    assert seen[0].tolist() == list(range(12))
    assert seen[1].tolist() == [*range(10), -1, -1]
    wanted = scores[:1].topk(5).indices.sort().values
    assert torch.equal(select_highest(scores[:1], torch.tensor([64]), 5).long(), wanted)


def check_selection() -> None:
    from sgl_ext.indexer.select_kernels import select_highest_live

    draw = torch.Generator().manual_seed(1)
    example = torch.tensor([[1.0, 3.0, 3.0, 2.0, 3.0]])
    assert select_highest_live(example, torch.tensor([4]), 3).tolist() == [[1, 2, 3]]
    lens = torch.tensor([2100, 1, 0, 1025], dtype=torch.int32)
    shape = (4, 2200)
    coarse = torch.randint(-3, 4, shape, generator=draw).float()  # ties everywhere, both signs
    gaps = bf16(torch.randn(shape, generator=draw) * 50)
    gaps.masked_fill_(torch.rand(shape, generator=draw) < 0.6, -torch.inf)  # fewer than k are left
    same = torch.full(shape, -0.0)
    same[:, ::7] = 0.0  # -0 and 0 are one value
    for scores, k in ((coarse, 512), (coarse, 1), (gaps, 900), (same, 512)):
        filled = torch.where(torch.arange(shape[1]) < lens.unsqueeze(1), scores, POISON)
        wanted = select_highest(scores, lens, k)
        assert torch.equal(select_highest_live(filled, lens, k), wanted), (k, scores[0, :8])


def key_pool(positions: int, page_size: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Random pages and the slot of each position, which are spread over the pool."""
    pages = -(-positions // page_size) + 3
    keys = torch.randint(0, 256, (pages, page_size * 68), dtype=torch.uint8, generator=draw)
    keys[:, page_size * 64 :] = keys[:, page_size * 64 :] % 6 + 124
    return keys, torch.randperm(pages * page_size, generator=draw)[:positions]


def check_scores() -> None:
    from sgl_ext.indexer.score_kernels import block_maxima_live, score_live
    from sgl_ext.kernels.index_key_slots import load_keys
    from sgl_ext.kernels.index_logits import score_keys

    table = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    draw = torch.Generator().manual_seed(2)
    for ratio, heads, page_size in ((2, 32, 32),):  # 8 heads and pages of 64 are in check_boot
        keys, slots = key_pool(400, page_size, draw)
        req_to_token = torch.zeros((3, 400 * ratio), dtype=torch.int32)
        req_to_token[2] = (slots.repeat_interleave(ratio) * ratio).to(torch.int32)
        req_to_token[1] = req_to_token[2].flip(0) // ratio * ratio
        req, lens = torch.tensor([2, 1, 2]), torch.tensor([333, 64, 7])
        q = torch.randint(-4, 5, (3, heads, 128), generator=draw).to(torch.bfloat16) / 4
        weights = torch.randn((3, heads), generator=draw).to(torch.bfloat16)
        seen = score_live(q, weights, req, req_to_token, lens, keys, capacity=400, ratio=ratio)
        for row in range(3):
            live = int(lens[row])
            place = req_to_token[req[row], : live * ratio : ratio].long() // ratio
            k = load_keys(keys, place.unsqueeze(0), page_size, table)
            wanted = score_keys(q[row : row + 1], weights[row : row + 1], k)[0]
            # A bf16 step apart at most, where the heads are added in another order.
            assert torch.allclose(seen[row, :live], wanted, rtol=2**-7, atol=0.02), (ratio, row)
            assert (seen[row, :live] == wanted).float().mean() > 0.9, (ratio, row)
        maxima = block_maxima_live(seen, lens)
        for row in range(3):
            count = -(-int(lens[row]) // 8)
            assert torch.equal(maxima[row, :count], block_maxima(seen, lens)[row, :count])
        blocks = torch.tensor([[0, 2, 41, -1], [1, 7, -1, -1], [0, -1, -1, -1]], dtype=torch.int32)
        listed = score_live(
            q, weights, req, req_to_token, lens, keys, capacity=400, ratio=ratio, blocks=blocks
        )
        for row in range(3):
            for column in range(32):
                block = int(blocks[row, column // 8])
                position = block * 8 + column % 8
                wanted = (
                    seen[row, position] if block >= 0 and position < lens[row] else torch.tensor(-torch.inf)
                )
                assert listed[row, column] == wanted


class Indexer:
    index_topk = 512

    def __init__(self, q: torch.Tensor, weights: torch.Tensor) -> None:
        self.q, self.weights = q, weights

    def queries(self, q_lora: object, freqs: object) -> torch.Tensor:
        return self.q

    def head_weights(self, x: object) -> torch.Tensor:
        return self.weights


def check_step() -> None:
    """A source publishes, a consumer follows, as SGLang's own dense functions but for equal scores."""
    from types import SimpleNamespace

    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    from sglang.kernels.ops.attention.dsv4.candidate_blocks import (
        select_candidate_block_ids,
        topk_among_blocks,
    )

    from sgl_ext.indexer.decode_step import publish_blocks, score_step, write_selection

    draw = torch.Generator().manual_seed(4)
    keys, slots = key_pool(900, 64, draw)
    req_to_token = slots.to(torch.int32).repeat(3, 1)
    q = torch.randn((2, 8, 128), generator=draw).to(torch.bfloat16)
    out = torch.full((2, 512), 7, dtype=torch.int32)
    inputs = SimpleNamespace(
        compress_ratio=1,
        positions=torch.tensor([799, 20]),
        req_rows=torch.tensor([2, 1]),
        paged_metadata=SimpleNamespace(max_compressed_seq_len=900),
        indexer=Indexer(q, torch.rand((2, 8), generator=draw).to(torch.bfloat16)),
        q_lora=None,
        freqs_cis=torch.zeros(900),
        x=None,
        layer_id=4,
        out_page_indices=out,
        reset_outputs=lambda: out.fill_(-1),
    )
    pool = SimpleNamespace(get_index_k_with_scale_buffer=lambda layer: keys)

    def slots_of(positions: torch.Tensor) -> torch.Tensor:
        return torch.where(positions >= 0, slots[positions.clamp_min(0).long()].to(torch.int32), -1)

    step = score_step(inputs, pool, req_to_token)
    assert step is not None and step.lens.tolist() == [800, 21]
    dense = step.scores.masked_fill(torch.arange(900) >= step.lens.unsqueeze(1), -torch.inf)
    blocks = publish_blocks(step, 64)
    stock = select_candidate_block_ids(dense, step.lens.unsqueeze(1), 64, 8)
    assert stock.shape == blocks.shape
    for row in range(2):
        ours, theirs = set(blocks[row].tolist()), set(stock[row].tolist())
        best = {block: float(dense[row, block * 8 : block * 8 + 8].max()) for block in (ours ^ theirs) - {-1}}
        assert len(set(best.values())) <= 1, "they may differ in equal block maxima only"
    assert blocks[0].tolist() == sorted(blocks[0].tolist()) and 799 // 8 in blocks[0].tolist()
    write_selection(inputs, step, req_to_token)
    assert torch.equal(out, slots_of(select_highest(dense, step.lens, 512)))
    live = out[1][out[1] >= 0]
    assert torch.equal(live, req_to_token[1, :21]) and (out[0] >= 0).all()

    follower = score_step(inputs, pool, req_to_token, blocks)
    assert follower is not None and (out == -1).all()
    inputs.indexer.index_topk = 256
    write_selection(inputs, follower, req_to_token, blocks)
    assert (out[:, 256:] == -1).all()
    position_of = torch.full((keys.shape[0] * 64,), -1)
    position_of[slots] = torch.arange(900)
    stock_chosen = topk_among_blocks(dense, step.lens, blocks, 256, block_size=8)
    for row in range(2):
        chosen = position_of[out[row][out[row] >= 0].long()].tolist()
        ours = sorted(dense[row, i].item() for i in chosen)
        theirs = sorted(dense[row, i].item() for i in stock_chosen[row].tolist() if i >= 0)
        assert ours == theirs and len(ours) == (256 if row == 0 else 21)
        assert chosen == sorted(chosen)


def check_bounded_scores() -> None:
    """SGLang's scores of a chunk, fewer rows at a time: no tensor of them above its third of the bound."""
    import os
    from types import SimpleNamespace

    from sglang.srt.layers.attention.dsv4.v41_indexer.scoring import RequestScores, _score_chunks

    from sgl_ext.errors import SettingError
    from sgl_ext.hooks.score_chunks import TRANSIENT_VARIABLE, read_transient_bytes, score_in_bounds

    heads, positions, rows = 32, 6000, 200
    draw = torch.Generator().manual_seed(8)
    keys = torch.randn((positions, 128), generator=draw).to(torch.bfloat16)
    q = torch.randn((rows, heads, 128), generator=draw).to(torch.bfloat16)
    weights = torch.rand((rows, heads), generator=draw)
    largest = []

    def scores(q: torch.Tensor, k: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        products = torch.einsum("thd,nd->thn", q, k)
        largest.append(products.numel() * products.element_size())
        return (products.relu() * weights.unsqueeze(-1)).sum(1)

    request = RequestScores(
        lc=positions,
        k=512,
        columns=torch.arange(positions),
        tok=torch.arange(rows).flip(0),
        lens=torch.arange(rows) + positions - rows + 1,
        slots=torch.arange(positions),
    )
    asked = {
        "indexer": SimpleNamespace(scores=scores),
        "q": q,
        "weights": weights,
        "index_k": keys,
        "request": request,
    }
    (whole,) = _score_chunks(**asked)
    largest.clear()
    os.environ[TRANSIENT_VARIABLE] = "32"
    try:
        parts = list(score_in_bounds(**asked))
    finally:
        del os.environ[TRANSIENT_VARIABLE]
    assert len(parts) > 5 and 3 * max(largest) <= 32 << 20
    assert torch.equal(torch.cat([part.tok for part in parts]), whole.tok)
    assert torch.equal(torch.cat([part.lens for part in parts]), whole.lens)
    together = torch.cat([part.scores for part in parts])
    # A product may be rounded a bf16 step apart where it is cut into other rows.
    assert torch.allclose(together, whole.scores, rtol=2**-6, atol=0.05)
    assert torch.equal(together.isinf(), whole.scores.isinf())
    for text in ("0", "15", "many"):
        with pytest.raises(SettingError, match=TRANSIENT_VARIABLE):
            read_transient_bytes({TRANSIENT_VARIABLE: text})


def check_kv_formats() -> None:
    """Rows packed by the plain form of V4.1's KV layouts, read back by SGLang's kernel for them."""
    from types import SimpleNamespace

    from sglang.kernels.ops.attention.dsv4 import dequant_k_cache
    from sglang.kernels.ops.attention.dsv4.kv_layout import KVLayout

    from sgl_ext.kv_layouts.packed_rows import V41, V41_FP4, empty_cache, load_rows, store_rows

    dequant_k_cache.get_jit_cuda_arch = lambda: SimpleNamespace(major=10)
    draw = torch.Generator().manual_seed(12)
    rows = torch.randn((60, 512), generator=draw) * torch.tensor([1.0, 20.0, 1 / 50]).repeat(20).unsqueeze(1)
    slots = torch.randperm(192, generator=draw)[:60].to(torch.int32)
    for form in (V41, V41_FP4):
        layout = KVLayout.parse(form.name)
        assert layout.bytes_per_token == form.bytes_per_token and layout.tile_size == form.group
        cache = empty_cache(form, 3, 64, torch.device("cpu"))
        assert cache.shape[1] == layout.page_bytes(64)
        store_rows(cache, slots, rows, 64, form)
        seen = dequant_k_cache.dequantize_k_cache_paged_v41(cache, slots, 64, layout=layout)[:, 0]
        assert torch.equal(seen, load_rows(cache, slots, 64, form)), form.name


def check_boot() -> None:
    """The kernels pass their own boot check; what it finds in wrong ones is in test_boot_check.py."""
    from sgl_ext.indexer.boot_check import check_indexer, own_kernels

    verdict = check_indexer(own_kernels(), torch.device("cpu"), heads=8, topk=48, capacity=150)
    assert verdict.problem is None and max(verdict.errors.values()) < 0.005, verdict


def check_all() -> None:
    check_boot()
    check_selection()
    check_scores()
    check_step()
    check_bounded_scores()
    check_kv_formats()


@pytest.mark.sglang
@pytest.mark.slow
def test_kernels_do_what_the_plain_form_does() -> None:
    """One process for all: importing is slow."""
    run_interpreted(__name__)
