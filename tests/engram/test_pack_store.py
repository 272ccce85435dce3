"""From checkpoint to served rows: packed here, opened and read by the row store, for every split."""

from pathlib import Path

import numpy as np
import pytest

from engram.errors import TableMismatchError
from engram.hash_layout import make_hash_layout
from engram.hash_rows import RowHasher
from engram.row_store import RowStore, open_row_store
from engram.self_test import Expected
from engram.table_format import deal_columns
from engram.token_map import load_token_map
from tests.engram.test_pack_table import pack
from tests.engram.tiny_checkpoint import REVISION, TinyCheckpoint, build_checkpoint


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"))


def open_rank(tiny: TinyCheckpoint, directory: Path, rank: int, tp: int) -> RowStore:
    expect = Expected(
        rank=rank,
        tp=tp,
        source_revision=REVISION,
        layer_ids=tiny.config.engram_layer_ids,
        total_rows=tiny.config.engram_num_embeddings,
    )
    names = [f"layer-{layer_id:02d}.rank-{rank}of{tp}.engram" for layer_id in tiny.config.engram_layer_ids]
    return open_row_store(
        [directory / name for name in names], expect=expect, backend="threads", allow_buffered=True
    )


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_every_byte_read_back_through_the_store(tiny: TinyCheckpoint, tmp_path: Path, tp: int) -> None:
    pack(tiny, tmp_path, tp=tp, ranks=tuple(range(tp)))
    layout = make_hash_layout(tiny.config)
    for layer_id in tiny.config.engram_layer_ids:
        weight = np.zeros_like(tiny.weights[layer_id])
        scale = np.zeros_like(tiny.scales[layer_id])
        num_read = 0
        for rank in range(tp):
            columns = deal_columns(layout.column_bounds(layer_id), rank, tp)
            ids = np.concatenate([np.arange(c.first_row, c.first_row + c.num_rows) for c in columns])
            with open_rank(tiny, tmp_path, rank, tp) as store:
                weight[ids], scale[ids] = store.read_rows(layer_id, ids)
            num_read += len(ids)
        assert num_read == len(weight)
        assert np.array_equal(weight, tiny.weights[layer_id])
        assert np.array_equal(scale, tiny.scales[layer_id])


def test_a_rank_reads_the_rows_of_its_hashed_columns(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    """Tokens -> a rank's row ids -> its file -> the checkpoint's rows."""
    pack(tiny, tmp_path, tp=3, ranks=(2,))
    token_map = load_token_map(tiny.directory, expected_classes=tiny.config.engram_compressed_vocab_size)
    layout = make_hash_layout(tiny.config)
    tokens = np.random.default_rng(0).integers(0, len(token_map.class_ids), 200)
    whole = RowHasher(layout, token_map, pad_token_id=2).hash_prompt(tokens)
    ids = RowHasher(layout, token_map, pad_token_id=2, rank=2, tp=3).hash_prompt(tokens)
    assert np.array_equal(ids, whole[:, :, 2::3])
    with open_rank(tiny, tmp_path, 2, 3) as store:
        for layer_idx, layer_id in enumerate(layout.layer_ids):
            wanted = ids[:, layer_idx].reshape(-1)
            weight, scale = store.read_rows(layer_id, wanted)
            assert np.array_equal(weight, tiny.weights[layer_id][wanted])
            assert np.array_equal(scale, tiny.scales[layer_id][wanted])


def test_a_stale_split_does_not_open(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    pack(tiny, tmp_path, tp=3, ranks=(0,))
    for name in ("layer-01", "layer-02"):
        (tmp_path / f"{name}.rank-0of3.engram").rename(tmp_path / f"{name}.rank-0of4.engram")
    with pytest.raises(TableMismatchError, match="tp must be 4, got 3"):
        open_rank(tiny, tmp_path, 0, 4)
