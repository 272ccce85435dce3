"""A check: a name, what it proves, what goes wrong otherwise, and the function that looks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from launcher.doctor.case import Case
from launcher.doctor.finding import Problem

Part = Literal["host", "fabric", "gpu", "storage", "software", "reach", "cables", "registration"]
Find = Callable[[Case], Iterable[Problem]]


# Where a check makes sense: each says so in words, which its page repeats (launcher/doctor/check_pages.py).
def always(case: Case) -> bool:
    """on every node"""
    return True


def on_gpus(case: Case) -> bool:
    """where the engine runs on GPUs"""
    return case.has_gpu


def on_rdma(case: Case) -> bool:
    """where the topology names HCAs"""
    return case.has_rdma


def on_rdma_of_topology(case: Case) -> bool:
    """where the topology names HCAs (a plan file alone does not tell its links)"""
    return case.has_rdma and case.links is not None


def on_rdma_of_one_network(case: Case) -> bool:
    """where the topology names HCAs and its layout is pair or switch"""
    return case.has_rdma and case.layout in ("pair", "switch")


def on_rdma_without_container(case: Case) -> bool:
    """where the topology names HCAs and the engine runs in a venv"""
    return case.has_rdma and case.plan.runtime == "venv"


def between_nodes(case: Case) -> bool:
    """where the plan has several machines"""
    return case.is_spread


def between_hcas(case: Case) -> bool:
    """where the plan has several machines and the topology names HCAs"""
    return case.is_spread and case.has_rdma


def in_a_ring(case: Case) -> bool:
    """where the topology's layout is ring"""
    return case.layout == "ring"


def in_docker(case: Case) -> bool:
    """where the engine runs in docker"""
    return case.plan.runtime == "docker"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`means`: what holds when it is ok. `why`: what happens otherwise. `covers`: public reports of it (F
    numbers of docs/field-reports.md). `applies` is False where the question makes no sense on these nodes."""

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
