"""A check: a name, what it proves, what goes wrong otherwise, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from launcher.doctor.case import Case
from launcher.doctor.finding import Problem

Part = Literal["host", "fabric", "gpu", "storage", "software", "reach", "cables", "registration"]
Find = Callable[[Case], Iterable[Problem]]


def always(case: Case) -> bool:
    return True


def on_gpus(case: Case) -> bool:
    return case.has_gpu


def on_rdma(case: Case) -> bool:
    return case.has_rdma


def between_nodes(case: Case) -> bool:
    return case.is_spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`means`: what holds when it is ok. `why`: what happens otherwise. `covers`: public reports of it (F
    numbers
    of docs/field-reports.md). `applies` is False where the question makes no sense on these nodes."""

    id: str
    part: Part
    means: str
    why: str
    fix: str
    find: Find
    applies: Callable[[Case], bool]
    covers: tuple[str, ...]


def check(
    id: str,
    *,
    part: Part,
    means: str,
    why: str,
    fix: str,
    covers: str = "",
    applies: Callable[[Case], bool] = always,
) -> Callable[[Find], Check]:
    """Decorator: a function over a case becomes a check."""

    def make(find: Find) -> Check:
        return Check(
            id=id,
            part=part,
            means=means,
            why=why,
            fix=fix,
            find=find,
            applies=applies,
            covers=tuple(covers.split()),
        )

    return make
