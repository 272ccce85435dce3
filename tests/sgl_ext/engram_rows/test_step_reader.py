"""The native step reader against the real row store: rows, order of layers, errors, reuse by replays."""

import os
from pathlib import Path

import numpy as np
import pytest
from engram._core import READ_NOW_ADDRESS

from engram.row_store import RowStore, open_row_store
from sgl_ext.engram.payload import PayloadLayout
from tests.sgl_ext.engram_rows.conftest import LAYERS

_native = pytest.importorskip("sgl_ext.engram._native")


class Buffers:
    """What StepFetch pins: ids and payload of each layer."""

    def __init__(self, store: RowStore, num_ids: int, part_ids: int, threads: int = 3) -> None:
        self.store = store
        self.layout = PayloadLayout(num_ids=num_ids, dim=store.shape.weight_bytes)
        self.ids = [np.zeros(num_ids, dtype=np.int64) for _ in LAYERS]
        self.payloads = [np.full(self.layout.total_bytes, 0xAA, dtype=np.uint8) for _ in LAYERS]
        pool = _native.ReaderPool(
            read_now_address=READ_NOW_ADDRESS,
            weight_bytes=store.shape.weight_bytes,
            scale_bytes=store.shape.scale_bytes,
            num_threads=threads,
        )
        layers = []
        for layer, ids, payload in zip(LAYERS, self.ids, self.payloads, strict=True):
            base = payload.ctypes.data
            scale, status = base + self.layout.scale_offset, base + self.layout.status_offset
            layers.append((store.reader_address(layer), ids.ctypes.data, num_ids, base, scale, status))
        self.step = _native.Step(pool, layers, part_ids=part_ids)

    def run(self) -> list[int]:
        """As a graph does: the first layer's node, then the others'. Returns the statuses."""
        for layer in range(len(LAYERS)):
            self.step.run_node(layer)
        return [int(payload[self.layout.status_offset :][:8].view(np.int64)[0]) for payload in self.payloads]


def store_of(directory: Path, **options: object) -> RowStore:
    files = [directory / f"layer-{layer:02d}.rank-0of1.engram" for layer in LAYERS]
    return open_row_store(files, allow_buffered=True, **options)


def draw(store: RowStore, num_ids: int, seed: int) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.integers(0, header.total_rows, num_ids) for header in store.headers]


@pytest.mark.parametrize(("num_ids", "part_ids"), [(24, 32), (24, 7), (1000, 32), (1000, 1 << 62)])
def test_replays_with_new_ids_bring_the_new_rows(packed_dir: Path, num_ids: int, part_ids: int) -> None:
    with store_of(packed_dir, cache_bytes=1 << 20) as store:
        buffers = Buffers(store, num_ids, part_ids)
        for seed in range(20):
            wanted = draw(store, num_ids, seed)
            for ids, new in zip(buffers.ids, wanted, strict=True):
                ids[:] = new
            assert buffers.run() == [0, 0]
            for layer, ids, payload in zip(LAYERS, wanted, buffers.payloads, strict=True):
                weight, scale = store.read_rows(layer, ids)
                assert np.array_equal(payload[: weight.size], weight.reshape(-1))
                scales = payload[buffers.layout.scale_offset :][: scale.size]
                assert np.array_equal(scales, scale.reshape(-1))


@pytest.mark.parametrize("num_ids", [24, 1000])
def test_with_rows_in_memory_no_thread_reads_for_the_next_layer(packed_dir: Path, num_ids: int) -> None:
    """The first layer has the least slack. A busy machine may take a pause for a drive now and then."""
    with store_of(packed_dir, cache_bytes=8 << 20) as store:
        buffers = Buffers(store, num_ids, part_ids=32)
        for ids, new in zip(buffers.ids, draw(store, num_ids, 1), strict=True):
            ids[:] = new
        buffers.run()
        wanted = [payload.copy() for payload in buffers.payloads]
        misses = store.counters().missed_rows
        untouched = 0
        for _ in range(100):
            for payload in buffers.payloads:
                payload[:] = 0xAA
            buffers.step.run_node(0)
            status = buffers.layout.status_offset
            untouched += bool((buffers.payloads[1][:status] == 0xAA).all())
            buffers.step.run_node(1)
            for payload, rows in zip(buffers.payloads, wanted, strict=True):
                assert np.array_equal(payload[:status], rows[:status])
        assert untouched > 10
        assert store.counters().missed_rows == misses


def test_foreign_id_is_a_status_and_the_next_step_is_clean(packed_dir: Path) -> None:
    with store_of(packed_dir) as store:
        buffers = Buffers(store, 100, part_ids=8)
        buffers.ids[1][70] = store.headers[1].total_rows
        assert buffers.run() == [0, -34]  # -ERANGE, of the layer that failed only
        buffers.ids[1][70] = 0
        assert buffers.run() == [0, 0]


def test_file_truncated_while_serving_is_a_status(packed_dir: Path, tmp_path: Path) -> None:
    for path in packed_dir.iterdir():
        if "of1" in path.name or path.name == "manifest.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with store_of(tmp_path) as store:
        buffers = Buffers(store, 50, part_ids=8)
        assert buffers.run() == [0, 0]
        os.truncate(store.paths[0], 4096)
        for ids, new in zip(buffers.ids, draw(store, 50, 3), strict=True):
            ids[:] = new
        assert buffers.run() == [-5, 0]


def test_closed_store_is_a_status(packed_dir: Path) -> None:
    store = store_of(packed_dir)
    buffers = Buffers(store, 8, part_ids=8)
    store.close()
    assert all(status < 0 for status in buffers.run())


@pytest.mark.parametrize("wrong", [{"part_ids": 0}, {"threads": 0}])
def test_sizes_of_zero_are_refused(packed_dir: Path, wrong: dict[str, int]) -> None:
    with store_of(packed_dir) as store, pytest.raises(ValueError, match="must be at least 1, got 0"):
        Buffers(store, 8, **({"part_ids": 8} | wrong))
