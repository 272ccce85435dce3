"""Pure: how long a start still takes, from what earlier starts of the same recipe took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from launcher.run_record import RunRecord

# Newer ones say more: the machine's disks and caches change.
NUM_EARLIER = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadEstimate:
    """`usual_s`: median of `num_earlier` starts; None when there is none to go by."""

    elapsed_s: float
    usual_s: float | None
    num_earlier: int

    @property
    def remaining_s(self) -> float | None:
        """None when nothing is known, or when it already takes longer than usual."""
        if self.usual_s is None or self.elapsed_s >= self.usual_s:
            return None
        return self.usual_s - self.elapsed_s


def estimate_load(record: RunRecord, earlier: Iterable[RunRecord], now_unix: float) -> LoadEstimate:
    """`earlier`: newest first, any runs."""
    took_s = [
        other.timings["start_s"] + other.timings["engine_s"]
        for other in earlier
        if other.run_id != record.run_id
        and other.plan.recipe == record.plan.recipe
        and other.plan.topology == record.plan.topology
        and len(other.plan.nodes) == len(record.plan.nodes)
        # Only a start that became ready has both.
        and {"start_s", "engine_s"} <= other.timings.keys()
    ][:NUM_EARLIER]
    return LoadEstimate(
        elapsed_s=max(0.0, now_unix - record.started_unix),
        usual_s=median(took_s) if took_s else None,
        num_earlier=len(took_s),
    )
