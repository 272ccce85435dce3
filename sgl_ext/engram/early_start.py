"""Reads of a verify (DSPARK) that start before its forward: its ids are known once the draft block is.

Whoever knows them first hashes them here; the model's own hash then gets the ids that were remembered, so
that nothing is hashed or read twice. A verify's hash commits no history, so its place in the step is free.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from sgl_ext.engram.host_read import HostRead
from sgl_ext.errors import EngramReadError

if TYPE_CHECKING:
    from sgl_ext.engram.row_service import RowService


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyInputs:
    """What EngramHasher.forward reads of a verify's forward batch, before SGLang has made one."""

    forward_mode: Any
    req_pool_indices: torch.Tensor
    positions: torch.Tensor
    spec_info: Any


@dataclass(slots=True, kw_only=True)
class _Begun:
    spec_info: Any  # of this verify alone: it tells whether the forward that hashes is the one that was begun
    input_ids: torch.Tensor
    hash_ids: torch.Tensor
    in_graph: bool
    reads: dict[int, HostRead] = field(default_factory=dict)  # layer -> read; a GPU's are its StepFetch's
    taken: bool = False


class EarlyStart:
    """One per rank. Not thread-safe: the scheduler's thread launches forwards."""

    def __init__(self, service: RowService) -> None:
        self._service = service
        self._begun: _Begun | None = None
        self.is_hashing = False
        # Verify graphs by where their reads start; a start with the hash is a drift of SGLang.
        self.graphs_at_head = 0
        self.graphs_at_hash = 0
        self.lost = 0  # begun, and no forward hashed it

    def begin(self, hasher: Any, input_ids: torch.Tensor, inputs: Any) -> None:
        """Hashes a verify's input_ids [tokens], starts its reads. inputs: a forward batch or VerifyInputs.

        On a GPU the hook on the hasher starts the step fetch, captured or eagerly; without one every layer
        has a read of its own. What was begun for a forward that never came is dropped.
        """
        self.drop()
        in_graph = input_ids.is_cuda and torch.cuda.is_current_stream_capturing()
        self.is_hashing = True
        try:
            hash_ids = hasher(input_ids, inputs)
        finally:
            self.is_hashing = False
        begun = _Begun(spec_info=inputs.spec_info, input_ids=input_ids, hash_ids=hash_ids, in_graph=in_graph)
        if not hash_ids.is_cuda:
            for layer in range(len(self._service.tables)):
                begun.reads[layer] = HostRead(self._service, layer, hash_ids[:, layer], pinned=False)
        self._begun = begun
        if in_graph:
            self.graphs_at_head += 1

    def take_ids(self, input_ids: torch.Tensor, forward_batch: Any) -> torch.Tensor | None:
        """The row ids of the verify that was begun; None where this forward's was not."""
        begun = self._begun
        if self.is_hashing or begun is None or begun.taken or begun.spec_info is not forward_batch.spec_info:
            return None
        # A graph replays on the buffers it was captured with; an eager forward may hash a copy of them.
        same_memory = not begun.in_graph or input_ids.data_ptr() == begun.input_ids.data_ptr()
        if input_ids.shape != begun.input_ids.shape or not same_memory:
            raise EngramReadError(
                f"A verify's forward must hash the {begun.input_ids.shape[0]} tokens whose Engram rows are "
                f"being read, got {input_ids.shape[0]}{'' if same_memory else ' in other memory'}.",
                hint="install the SGLang version this plugin names: python -m sgl_ext.fingerprints",
            )
        begun.taken = True
        if not begun.reads:  # a GPU's: nothing of a graph's memory is kept
            self._begun = None
        return begun.hash_ids

    def take_read(self, layer: int, indices: torch.Tensor) -> HostRead | None:
        """The read of a layer's row ids, begun before this forward; None where there is none."""
        begun = self._begun
        if begun is None or not begun.taken or layer not in begun.reads:
            return None
        if indices.untyped_storage().data_ptr() != begun.hash_ids.untyped_storage().data_ptr():
            return None
        return begun.reads.pop(layer)

    def drop(self) -> None:
        """Forgets what was begun; reads that no layer took are cancelled."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        if not begun.taken:
            self.lost += 1
        for read in begun.reads.values():
            read.drop()
