"""What a step costs: measured nanoseconds by batch and verified width, the draft separately. Pure."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from sgl_ext.errors import CostTableError

# A verify of a few more rows cannot cost this much more than a plain step: 288 rows took 9.5 times as long
# as 6 in the longest published profile. More than that is a unit error or a stalled measurement.
_MAX_OVER_PLAIN = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """verify_ns[b][w]: a target step of batches[b] requests that verifies w draft tokens each; w = 0 is the
    plain step. draft_ns[b]: drafting a block for that batch. A batch between two buckets costs what the
    larger one costs, as in SGLang's padded graphs. A larger batch may cost less: on an H200 a step of one
    request took longer than one of eight (results/gpu-h200-2026-11-29-second)."""

    batches: tuple[int, ...]
    verify_ns: tuple[tuple[int, ...], ...]
    draft_ns: tuple[int, ...]

    def __post_init__(self) -> None:
        _check(self)

    @property
    def block(self) -> int:
        """Draft tokens in a block."""
        return len(self.verify_ns[0]) - 1

    @property
    def max_batch(self) -> int:
        return self.batches[-1]

    def plain_ns(self, batch: int) -> int:
        return self.verify_ns[self._bucket(batch)][0]

    def step_ns(self, batch: int, width: int, *, drafted: bool = True) -> int:
        """A step in which every request verifies width draft tokens."""
        bucket = self._bucket(batch)
        return self.verify_ns[bucket][width] + (self.draft_ns[bucket] if drafted else 0)

    def ragged_step_ns(self, batch: int, num_draft_tokens: int, *, drafted: bool = True) -> int:
        """A step that verifies num_draft_tokens in all, spread over the requests at will: what counts is the
        total number of rows, so this lies between the two equal widths around it (rounded up)."""
        bucket = self._bucket(batch)
        costs = self.verify_ns[bucket]
        width, rest = divmod(num_draft_tokens, batch)
        cost = costs[width]
        if rest:
            cost += -(-(costs[width + 1] - cost) * rest // batch)
        return cost + (self.draft_ns[bucket] if drafted else 0)

    def ragged_costs(self, batch: int) -> tuple[int, ...]:
        """ragged_step_ns for 0 to batch * block draft tokens."""
        return tuple(self.ragged_step_ns(batch, total) for total in range(batch * self.block + 1))

    def _bucket(self, batch: int) -> int:
        bucket = bisect.bisect_left(self.batches, batch)
        if batch < 1 or bucket == len(self.batches):
            raise CostTableError(
                f"The batch must be 1 to {self.max_batch} for this cost table, got {batch}.",
                hint="measure the missing batches; docs/speculation.md says which",
            )
        return bucket


def _check(table: CostTable) -> None:
    """Refuses what no machine can measure; each message names the entry."""
    if not table.batches or list(table.batches) != sorted(set(table.batches)) or table.batches[0] < 1:
        raise _wrong("batches must be positive and strictly increasing", table.batches)
    if len(table.verify_ns) != len(table.batches) or len(table.draft_ns) != len(table.batches):
        raise _wrong(
            f"verify_ns and draft_ns must have {len(table.batches)} entries, one a batch",
            (len(table.verify_ns), len(table.draft_ns)),
        )
    widths = {len(row) for row in table.verify_ns}
    if len(widths) != 1 or min(widths) < 2:
        raise _wrong("verify_ns must have the same widths 0 to block (at least 1) for each batch", widths)
    for batch, row, draft in zip(table.batches, table.verify_ns, table.draft_ns, strict=True):
        if row[0] < 1 or draft < 0:
            raise _wrong(f"times of batch {batch} must be positive", (row[0], draft))
        if list(row) != sorted(row):
            raise _wrong(f"verify_ns of batch {batch} must not fall with the width", row)
        if row[-1] > _MAX_OVER_PLAIN * row[0] or draft > _MAX_OVER_PLAIN * row[0]:
            raise _wrong(f"times of batch {batch} must be under {_MAX_OVER_PLAIN} plain steps", (*row, draft))


def _wrong(expected: str, seen: object) -> CostTableError:
    return CostTableError(
        f"Cost table: {expected}, got {seen}.", hint="measure it again; docs/speculation.md says how"
    )
