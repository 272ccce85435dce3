"""Pure: what doctor and preflight say about memory, from a plan's recipe and the nodes' own facts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from launcher.fit.constants import GB, GIB, constants
from launcher.fit.fit_recipe import Fit, WhatIf, fit_recipe
from launcher.fit.memory_budget import gb, gib
from launcher.fit.model_shape import ModelShape
from launcher.preflight import Finding
from launcher.recipe import Recipe

# Less is the noise of a running system.
_WARN_HELD_BYTES = 2 * GIB


class PlanLike(Protocol):
    """What a check needs of a plan: the recipe, the model's shape, the nodes in rank order."""

    @property
    def recipe(self) -> Recipe: ...

    @property
    def shape(self) -> ModelShape: ...

    @property
    def node_names(self) -> tuple[str, ...]: ...


class MemoryFacts(Protocol):
    """NodeFacts has both."""

    @property
    def memory_total_bytes(self) -> int | None: ...

    @property
    def memory_available_bytes(self) -> int: ...


def memory_findings(plan: PlanLike, facts: Mapping[str, MemoryFacts]) -> tuple[Finding, ...]:
    """Every node must have facts. Problems of the recipe stand on the head, those of a node on itself."""
    totals = [facts[name].memory_total_bytes for name in plan.node_names]
    usable = min([gib(constants().usable_gib), *(total for total in totals if total is not None)])
    fit = fit_recipe(plan.recipe, plan.shape, WhatIf(usable_bytes=usable))
    found = [
        Finding(
            level=problem.level,
            check=f"memory-{problem.check}",
            node=plan.node_names[0],
            message=problem.message,
            hint=problem.hint,
        )
        for problem in fit.problems
    ]
    for rank, name in enumerate(plan.node_names[: len(fit.budgets)]):
        found += _held_by_others(fit, rank, name, facts[name].memory_available_bytes)
    return tuple(found)


def _held_by_others(fit: Fit, rank: int, node: str, available_bytes: int) -> Iterator[Finding]:
    """Memory that is not free before the start is missing in the longest prefill."""
    healthy = gib(constants().idle_available_gib) - (gib(constants().usable_gib) - fit.settings.usable_bytes)
    held = healthy - available_bytes
    if held <= 0:
        return
    left = fit.budgets[rank].left_bytes - held
    message = (
        f"about {healthy / GIB:.0f} GiB must be available before the start, got "
        f"{available_bytes / GIB:.1f} GiB: other "
        f"processes hold {held / GIB:.1f} GiB, which leaves {left / GB:.1f} GB in the longest prefill"
    )
    hint = "see who holds it: free -g; ps aux --sort=-rss | head; nvidia-smi"
    if left < gb(constants().floor_gb):
        yield Finding(level="refuse", check="memory-held", node=node, message=message, hint=hint)
    elif held > _WARN_HELD_BYTES:
        yield Finding(level="warn", check="memory-held", node=node, message=message, hint=hint)
