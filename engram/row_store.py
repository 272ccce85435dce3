"""The row store: Engram rows from packed files on NVMe (or from RAM), into memory of the caller.

with open_row_store(files, expect=Expected(rank=0, tp=4), cache_bytes=1 << 30) as store:
    ticket = store.submit(1, row_ids, RowPlanes(weight=weight, scale=scale))
    ticket.wait()
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from engram._core import MAX_IDS_PER_SUBMIT, HostCall
from engram._core import RowStore as _NativeStore
from engram.regular_file import refuse_special_file
from engram.row_counters import StoreCounters, make_counters
from engram.row_source import Priority, ReadTicket, RowIds, RowPlanes, RowShape
from engram.self_test import Expected, check_against_manifest, check_expected, check_rows
from engram.store_options import StoreOptions
from engram.table_format import TableHeader, parse_header

Backend = Literal["io_uring", "threads", "ram"]


class RowStore:
    """Rows of one rank's packed files, one file a layer; a RowSource. Made by open_row_store().

    Every method may be called from any thread; all that can wait release the GIL.
    """

    def __init__(self, paths: tuple[Path, ...], options: StoreOptions, *, seam: object = None) -> None:
        self._native = _NativeStore(
            paths=[str(path) for path in paths],
            backend=options.backend,
            cache_bytes=options.cache_bytes,
            lookahead_bytes=options.lookahead_budget_bytes,
            queue_depth=options.queue_depth,
            lookahead_depth=min(options.lookahead_depth, options.queue_depth),
            max_pages_per_read=options.max_pages_per_read,
            max_gap_pages=options.max_gap_pages,
            num_threads=options.num_threads,
            deadline_s=options.deadline_s,
            allow_buffered=options.allow_buffered,
            seam=seam,
        )
        self.options = options
        # Parsed from the bytes that the core itself read through the descriptors it serves rows from.
        self.paths = paths
        self.headers: tuple[TableHeader, ...] = tuple(
            parse_header(self._native.header_bytes(table), where=str(path))
            for table, path in enumerate(paths)
        )
        self._tables = {header.layer_id: table for table, header in enumerate(self.headers)}
        first = self.headers[0]
        self.shape = RowShape(weight_bytes=first.weight_bytes, scale_bytes=first.scale_bytes)
        self.layer_ids = tuple(self._tables)
        # The core reads announced ids in place; a request's arrays live until it is cancelled.
        self._announced: dict[tuple[int, int], RowIds] = {}

    def submit(
        self, layer_id: int, row_ids: RowIds, out: RowPlanes, priority: Priority = Priority.DECODE
    ) -> ReadTicket:
        """Copies rows in memory at once and starts reading the others; at most MAX_IDS_PER_SUBMIT ids.

        row_ids: int64, C-contiguous, any shape. `out` is held until the ticket ends or is dropped.
        """
        ticket: ReadTicket = self._native.submit(
            self._tables[layer_id], row_ids, out.weight, out.scale, priority is Priority.LOOKAHEAD
        )
        return ticket

    def read_rows(self, layer_id: int, row_ids: RowIds) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Blocking: weight [n, weight_bytes] and scale [n, scale_bytes] of any number of ids."""
        ids = np.ascontiguousarray(row_ids, dtype=np.int64).reshape(-1)
        weight = np.empty((len(ids), self.shape.weight_bytes), dtype=np.uint8)
        scale = np.empty((len(ids), self.shape.scale_bytes), dtype=np.uint8)
        for start in range(0, len(ids), MAX_IDS_PER_SUBMIT):
            part = slice(start, start + MAX_IDS_PER_SUBMIT)
            self.submit(layer_id, ids[part], RowPlanes(weight=weight[part], scale=scale[part])).wait()
        return weight, scale

    def prefetch(self, request_key: int, layer_id: int, row_ids: RowIds) -> None:
        """Announces all ids that a request will ask of this layer, in order; they are not copied.

        The array must not change until cancel_request(). Call advance() as chunks are done (or found in
        a prefix cache) and cancel_request() at the end: rows that nobody takes hold a part of the budget.
        """
        ids = row_ids.reshape(-1)
        self._native.prefetch(request_key, self._tables[layer_id], ids)
        self._announced[request_key, layer_id] = ids

    def advance(self, request_key: int, layer_id: int, position: int) -> None:
        self._native.advance(request_key, self._tables[layer_id], position)

    def cancel_request(self, request_key: int) -> None:
        self._native.cancel_request(request_key)
        for layer_id in self.layer_ids:
            self._announced.pop((request_key, layer_id), None)

    def counters(self) -> StoreCounters:
        return make_counters(self._native.counters())

    def reader_address(self, layer_id: int) -> int:
        """Address of a layer's `engram_reader`, the context of engram_read_now (engram/core/c_entry.hpp).

        Valid until close(). READ_NOW_ADDRESS in engram._core is the function's address.
        """
        address: int = self._native.reader_address(self._tables[layer_id])
        return address

    def host_call(
        self, layer_id: int, *, ids_address: int, num_ids: int, weight_address: int, scale_address: int
    ) -> HostCall:
        """A read as a CUDA host node runs it: function RUN_HOST_CALL_ADDRESS, argument host_call.address.

        The memory is the caller's and must outlive the call. `status` is 0 or the first -errno.
        """
        return HostCall(
            store=self._native,
            table=self._tables[layer_id],
            ids_address=ids_address,
            num_ids=num_ids,
            weight_address=weight_address,
            scale_address=scale_address,
        )

    def close(self) -> None:
        """Cancels what is under way and waits for reads in flight. Idempotent."""
        self._native.close()
        self._announced.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_row_store(
    files: Sequence[Path | str],
    *,
    expect: Expected | None = None,
    self_test_blocks: int = 4,
    rng: random.Random | None = None,
    seam: object = None,
    **options: object,
) -> RowStore:
    """Opens one rank's packed files and proves that they are the right ones, or raises.

    files: one per layer, manifest.json beside them. expect: what the caller was configured for.
    self_test_blocks: random MiB per file to compare with the manifest; 0 skips the rows, never the headers.
    options: fields of StoreOptions (backend, cache_bytes, lookahead_budget_bytes, queue_depth, ...).
    seam: an engram._core.FaultScript, for tests.
    """
    checked = StoreOptions.model_validate(options)
    paths = tuple(Path(file) for file in files)
    if not paths:
        raise ValueError("files must name at least one packed table, got none")
    for path in paths:
        refuse_special_file(path)
    store = RowStore(paths, checked, seam=seam)
    try:
        check_expected(store.paths, store.headers, expect or Expected())
        for path, header in zip(store.paths, store.headers, strict=True):
            entry = check_against_manifest(path, header)
            check_rows(path, header, entry, store.read_rows, self_test_blocks, rng or random.Random())
    except BaseException:
        store.close()
        raise
    return store
