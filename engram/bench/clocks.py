"""Wall and CPU time of a call; CPU time covers all threads of the process, user and system apart."""

import resource
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    wall_s: float
    user_s: float
    system_s: float

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def measure(action: Callable[[], object]) -> Spent:
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    action()
    wall_s = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    return Spent(
        wall_s=wall_s, user_s=after.ru_utime - before.ru_utime, system_s=after.ru_stime - before.ru_stime
    )
