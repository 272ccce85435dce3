"""What serves Engram rows: the seam between the model and a store on NVMe, in RAM or on another machine.

Row ids are global ids of a layer's whole table. A source owns the columns of one rank (or all of them) and
refuses every other id: there is no way to get zeros in place of a row.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

RowIds = NDArray[np.int64]

# Memory of the caller: a writable C-contiguous buffer, or the address of one (pinned memory).
OutPlane = NDArray[Any] | bytearray | memoryview | int


class Priority(Enum):
    """Decode reads start at once; look-ahead reads only while no decode read is waiting or under way."""

    DECODE = "decode"
    LOOKAHEAD = "lookahead"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlanes:
    """Where n rows go: weight [n, weight_bytes] and scale [n, scale_bytes], both owned by the caller."""

    weight: OutPlane
    scale: OutPlane


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShape:
    weight_bytes: int
    scale_bytes: int


class ReadTicket(Protocol):
    """One submitted read. Dropping the last reference cancels it."""

    @property
    def done(self) -> bool: ...

    def wait(self, timeout_s: float | None = None) -> None:
        """Blocks until all rows are in place. Raises ReadError, RequestCancelled or WaitTimeout."""

    def cancel(self) -> None:
        """Once this returns, nothing is written to the planes any more."""


class RowSource(Protocol):
    """All methods may be called from any thread."""

    @property
    def shape(self) -> RowShape: ...

    @property
    def layer_ids(self) -> tuple[int, ...]: ...

    def submit(
        self, layer_id: int, row_ids: RowIds, out: RowPlanes, priority: Priority = Priority.DECODE
    ) -> ReadTicket:
        """Starts reading; does not wait for the disk. Raises RowIdError for an id that is not served here."""

    def prefetch(self, request_key: int, layer_id: int, row_ids: RowIds) -> None:
        """Announces all rows that a request will ask for, in order."""

    def advance(self, request_key: int, layer_id: int, position: int) -> None:
        """The ids before `position` of the announced ones will not be asked for any more."""

    def cancel_request(self, request_key: int) -> None:
        """The request ended or was aborted: what was read ahead for it is dropped."""

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...
