"""Pure: a recipe, and what nodes have, against a lock. Every difference is named with both values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from launcher.doctor.finding import Finding
from launcher.doctor.software_facts import Identity
from launcher.plan import LaunchPlan, LockPlan
from launcher.preflight import LOCK_CHECK, LOCK_HINT
from launcher.recipe import Recipe
from launcher.registry.recipe_lock import RecipeLock, recipe_sha256

MAX_TOLD = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContent:
    """What one node has. None: it could not be asked, and `why` says so."""

    identity: Identity | None
    files: Mapping[str, str] | None
    why: str = ""


def plan_lock(
    recipe: Recipe, whole: Recipe, lock: RecipeLock, *, file: str, sha256: str, extension: str
) -> LockPlan:
    """What of the lock can be judged now, and what the nodes must have.

    `whole`: the recipe without --profile, whose hash covers every profile. `extension`: sparkctl's version.
    """
    packages = {name: item.version for name, item in lock.engine.packages.items()}
    return LockPlan(
        file=file,
        sha256=sha256,
        differences=tuple(_differences(recipe, whole, lock, extension)),
        versions=packages | {"sparkctl": lock.extension.version},
        content={**lock.engine.content, **lock.extension.content},
        files={name: item.sha256 for name, item in lock.model.files.items() if item.sha256},
    )


def _differences(recipe: Recipe, whole: Recipe, lock: RecipeLock, extension: str) -> Iterator[str]:
    engine, model = recipe.engine, recipe.model
    pairs = (
        ("the recipe's sha256", lock.recipe.sha256[:16], recipe_sha256(whole)[:16]),
        ("engine.runtime", lock.engine.runtime, engine.runtime),
        ("engine.sglang_version", lock.engine.sglang_version, engine.sglang_version),
        ("engine.image", lock.engine.image, engine.image),
        ("model.repo", lock.model.repo, model.repo),
        ("model.revision", lock.model.revision, model.revision or lock.model.revision),
        ("sparkctl", lock.extension.version, extension),
    )
    for what, locked, seen in pairs:
        if locked != seen:
            yield f"{what} must be {locked or 'absent'} as locked, got {seen or 'none'}"


def node_findings(plan: LaunchPlan, found: Mapping[str, NodeContent]) -> tuple[Finding, ...]:
    """A refusal for each difference of a node, a warning for what could not be compared."""
    lock = plan.lock
    if lock is None:
        return ()
    findings = []
    for node in plan.nodes:
        own = found[node.name]
        differences = list(_node_differences(lock, own))
        for text in differences[:MAX_TOLD]:
            findings.append(_finding("refuse", node.name, text))
        if len(differences) > MAX_TOLD:
            findings.append(
                _finding("refuse", node.name, f"{len(differences) - MAX_TOLD} more differ from the lock")
            )
        if own.why:
            findings.append(_finding("warn", node.name, f"not compared with {lock.file}: {own.why}"))
    return tuple(findings)


def _node_differences(lock: LockPlan, own: NodeContent) -> Iterator[str]:
    identity = own.identity
    if identity is not None:
        for name, seen_version in identity.versions.items():
            wanted = lock.versions.get(name.lower().replace("_", "-"))
            if wanted and seen_version != wanted:
                yield f"{name} must be {wanted} as locked, got {seen_version or 'none'}"
        for name, wanted in lock.content.items():
            content = identity.content.get(name)
            seen = content.sha256 if content else "none"
            if seen != wanted:
                yield f"the files of {name} must be {wanted[:12]} as locked, got {seen[:12]}"
    for name, wanted in lock.files.items() if own.files is not None else ():
        seen = (own.files or {}).get(name, "none")
        if seen != wanted:
            yield f"model file {name} must have sha256 {wanted[:12]} as locked, got {seen[:12]}"


def _finding(level: str, node: str, message: str) -> Finding:
    return Finding(
        level="refuse" if level == "refuse" else "warn",
        check=LOCK_CHECK,
        node=node,
        evidence=message,
        fix=LOCK_HINT,
    )
