"""Pure: the memory model of `sparkctl fit` on the nodes' own checkpoint, as findings of doctor and up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from launcher.doctor.case import Case
from launcher.doctor.finding import Finding
from launcher.errors import ConfigError
from launcher.fit.constants import GB, GIB, constants
from launcher.fit.fit_recipe import Fit, WhatIf, fit_recipe
from launcher.fit.memory_budget import gb, gib
from launcher.fit.model_shape import ModelShape, reported_shape
from launcher.recipe import Recipe

CHECK = "memory-fit"
# `memory-` and a check of docs/fit.md: what holds when it says nothing.
MEMORY_CHECKS = {
    CHECK: "the recipe fits the nodes' memory, counted from the checkpoint's index as sparkctl fit does",
    "memory-weights": "the weights of a rank fit a node (F49)",
    "memory-engram-rows": "resident Engram rows fit beside the weights",
    "memory-expert-width": "the expert kernel takes the width of a rank's experts (F16)",
    "memory-expert-split": "the experts divide over the ranks",
    "memory-draft-experts": "the draft's experts divide over the ranks",
    "memory-head-split": "the attention heads divide over the ranks",
    "memory-context": "the context is at most the model's own",
    "memory-mem-fraction": "server.mem_fraction_static leaves memory for the KV pool",
    "memory-chunk-times-context": "chunk x context is at most what ran on clusters of this size (F43)",
    "memory-headroom": "2 GB stay free on the head in the longest prefill (F17, F45, F49)",
    "memory-pool-clamped": "the engine serves the pool that the recipe pins",
    "memory-pool-not-pinned": "the recipe pins the pool",
    "memory-pool-below-context": "the pool holds one request of the full context",
    "memory-nccl-buffers": "NCCL's buffers are the small ones (F46)",
    "memory-assumed": "the recipe says what memory depends on",
    "memory-held": "other processes hold nothing that the plan needs",
}
CONSEQUENCE = "the engine ends for memory while it loads or in a long prompt, or the host hangs"
# Less is the noise of a running system.
_WARN_HELD_BYTES = 2 * GIB


class MemoryFacts(Protocol):
    """NodeFacts has both."""

    @property
    def memory_total_bytes(self) -> int | None: ...

    @property
    def memory_available_bytes(self) -> int: ...


def memory_fit(case: Case, recipe: Recipe | None, facts: Mapping[str, MemoryFacts]) -> tuple[Finding, ...]:
    """`recipe` is None where only a plan file is known. The engine on CPUs has no Spark to fit on."""
    if case.plan.runtime == "cpu":
        return ()
    if recipe is None:
        return (_not_checked("a plan file does not hold its recipe", "sparkctl up --recipe NAME"),)
    try:
        shape = _shape_on_nodes(case)
    except ConfigError as error:
        return (_not_checked(error.message, error.hint or "sparkctl weights verify"),)
    silent = [node.name for node in case.plan.nodes if node.name not in facts]
    if silent:
        return (_not_checked(f"{', '.join(silent)} did not tell its memory", "sparkctl doctor"),)
    found = memory_findings(recipe, shape, tuple(node.name for node in case.plan.nodes), facts)
    if found:
        return found
    return (Finding(level="ok", check=CHECK, node="all", evidence=MEMORY_CHECKS[CHECK]),)


def memory_findings(
    recipe: Recipe, shape: ModelShape, nodes: tuple[str, ...], facts: Mapping[str, MemoryFacts]
) -> tuple[Finding, ...]:
    """`nodes` in rank order, with facts of each. What is wrong with the recipe stands on the head."""
    totals = [facts[name].memory_total_bytes for name in nodes]
    usable = min([gib(constants().usable_gib), *(total for total in totals if total is not None)])
    fit = fit_recipe(recipe, shape, WhatIf(usable_bytes=usable))
    found = [
        Finding(
            level=problem.level,
            check=f"memory-{problem.check}",
            node=nodes[0],
            evidence=problem.message,
            consequence=CONSEQUENCE,
            fix=problem.hint,
        )
        for problem in fit.problems
    ]
    for rank, name in enumerate(nodes[: len(fit.budgets)]):
        found += _held_by_others(fit, rank, name, facts[name].memory_available_bytes)
    return tuple(found)


def _shape_on_nodes(case: Case) -> ModelShape:
    """Of the first node that knows; the check same-model compares the others. Raises ConfigError."""
    for node, store in case.stores():
        if store.model is None or store.model.shape is None:
            continue
        seen, where = store.model.shape, f"{store.model.path} on {node.name}"
        if seen.problem:
            raise ConfigError(seen.problem, hint="sparkctl weights verify")
        return reported_shape(seen.config, seen.tensor_bytes, where=where)
    raise ConfigError(
        "no node has a DeepSeek-V4.1 checkpoint, and the sizes of other models are not known",
        hint="sparkctl fit --recipe NAME counts with the published sizes; sparkctl weights fetch",
    )


def _not_checked(why: str, fix: str) -> Finding:
    return Finding(
        level="not checked", check=CHECK, node="all", evidence=why, consequence=CONSEQUENCE, fix=fix
    )


def _held_by_others(fit: Fit, rank: int, node: str, available_bytes: int) -> Iterator[Finding]:
    """Memory that is not free before the start is missing in the longest prefill."""
    healthy = gib(constants().idle_available_gib) - (gib(constants().usable_gib) - fit.settings.usable_bytes)
    held = healthy - available_bytes
    if held <= 0:
        return
    left = fit.budgets[rank].left_bytes - held
    is_too_little = left < gb(constants().floor_gb)
    if is_too_little or held > _WARN_HELD_BYTES:
        yield Finding(
            level="refuse" if is_too_little else "warn",
            check="memory-held",
            node=node,
            evidence=f"about {healthy / GIB:.0f} GiB must be available before the start, got "
            f"{available_bytes / GIB:.1f} GiB: other processes hold {held / GIB:.1f} GiB, which leaves "
            f"{left / GB:.1f} GB in the longest prefill",
            consequence=CONSEQUENCE,
            fix="see who holds it: free -g; ps aux --sort=-rss | head; nvidia-smi",
        )
