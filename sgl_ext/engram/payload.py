"""One rank's rows of one layer as the bytes that travel: weight plane, scale plane, status.

The status (0 or -errno) is inside, so that every rank learns of one rank's failed read with the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

BLOCK = 32  # values per scale
_ALIGNMENT = 16  # bytes; the next rank's payload follows, and GPUs load 16 at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadLayout:
    """num_ids rows of dim FP8 values; offsets from the payload's start."""

    num_ids: int
    dim: int

    @property
    def scale_offset(self) -> int:
        return self.num_ids * self.dim

    @property
    def status_offset(self) -> int:
        return -(-(self.num_ids * (self.dim + self.dim // BLOCK)) // _ALIGNMENT) * _ALIGNMENT

    @property
    def total_bytes(self) -> int:
        return self.status_offset + _ALIGNMENT
