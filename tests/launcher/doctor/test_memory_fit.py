"""Memory as preflight and doctor see it: the plan's recipe against what the nodes report."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from launcher.compose_recipe import load_recipe
from launcher.doctor.case import Case
from launcher.doctor.finding import Finding
from launcher.doctor.memory_fit import MEMORY_CHECKS, memory_findings, memory_fit
from launcher.fit import fit_rules
from launcher.fit.constants import GIB, constants
from launcher.fit.fit_recipe import fit_recipe
from launcher.fit.model_shape import checkpoint_shape, reported_shape
from launcher.node.facts_shape import shape_facts
from launcher.recipe import Recipe
from tests.launcher.doctor.clusters import case_of, report_of, tree_of
from tests.launcher.doctor.spark_tree import HOME
from tests.launcher.fit_checkpoint import write_checkpoint
from tests.launcher.fit_settings import SHAPE

NODES = ("spark-1", "spark-2", "spark-3")
# MemTotal of a healthy Spark.
TOTAL = 127_600_748 * 1024


@dataclass(frozen=True, kw_only=True)
class Facts:
    memory_available_bytes: int = round(118.2 * GIB)
    memory_total_bytes: int | None = TOTAL


def find(**facts: Facts) -> tuple[Finding, ...]:
    recipe = load_recipe("v41-flash-3x")[0]
    own = {name: facts.get(name.replace("-", "_"), Facts()) for name in NODES}
    found = memory_findings(recipe, SHAPE, NODES, own)
    return tuple(finding for finding in found if finding.check != "memory-chunk-times-context")


def test_healthy_nodes_have_nothing_to_say() -> None:
    assert find() == ()


def test_desktop_on_a_worker_is_refused_there() -> None:
    """A desktop takes 1 to 15 GB."""
    (finding,) = find(spark_2=Facts(memory_available_bytes=108 * GIB))
    assert (finding.level, finding.node, finding.check) == ("refuse", "spark-2", "memory-held")
    assert "other processes hold 10.0 GiB" in finding.message
    assert finding.hint


@pytest.mark.parametrize(("available_gib", "level"), [(117.0, ""), (115.6, "warn"), (114.0, "refuse")])
def test_what_others_hold_on_a_worker(available_gib: float, level: str) -> None:
    found = find(spark_3=Facts(memory_available_bytes=round(available_gib * GIB)))
    assert "".join(finding.level for finding in found) == level


def test_node_with_less_memory_decides_for_all() -> None:
    found = find(spark_3=Facts(memory_total_bytes=96 * GIB, memory_available_bytes=93 * GIB))
    assert {finding.check for finding in found if finding.node == "spark-1"} == {"memory-weights"}


def test_unknown_total_is_a_spark() -> None:
    assert find(spark_1=Facts(memory_total_bytes=None)) == ()


def test_a_pool_of_three_million_tokens_on_three_nodes_is_refused() -> None:
    """F45: free memory swung between 3 and 7.5 GB, with chunks of 1024."""
    recipe = changed("v41-flash-3x", "server", max_total_tokens=3_000_000, chunked_prefill_size=1024)
    own = {name: Facts() for name in NODES}
    found = memory_findings(recipe, SHAPE, NODES, own)
    assert [(item.level, item.node) for item in found if item.check == "memory-headroom"] == [
        ("refuse", "spark-1")
    ]


def changed(name: str, part: str, **values: Any) -> Recipe:
    """A shipped recipe with other values in one part."""
    recipe = load_recipe(name)[0]
    return recipe.model_copy(update={part: getattr(recipe, part).model_copy(update=values)})


def with_cache(name: str, cache_gib: float) -> Recipe:
    recipe = load_recipe(name)[0]
    engram = recipe.extensions.engram.model_copy(update={"cache_gib": cache_gib})
    extensions = recipe.extensions.model_copy(update={"engram": engram})
    return recipe.model_copy(update={"extensions": extensions})


def without_nccl_values(name: str) -> Recipe:
    recipe = load_recipe(name)[0]
    kept = {key: value for key, value in recipe.environment.items() if not key.startswith("NCCL_")}
    return recipe.model_copy(update={"environment": kept})


REPORTED = {
    "F16": (changed("v41-flash-4x", "parallelism", ep=1), "refuse", "memory-expert-width", "576"),
    # 14 B x chunk x prefix beside a pool that leaves no room for it
    "F17": (
        changed("v41-flash-4x", "server", chunked_prefill_size=4096, max_total_tokens=6_000_000,
                context_length=420_000), "refuse", "memory-headroom", "GB",
    ),
    "F43": (
        changed("v41-flash-3x", "server", chunked_prefill_size=1024), "refuse",
        "memory-chunk-times-context", "1024",
    ),
    "F46": (without_nccl_values("v41-flash-4x"), "warn", "memory-nccl-buffers", "NCCL"),
    "F60": (with_cache("v41-flash-3x", 12.0), "refuse", "memory-headroom", "GB"),
}  # fmt: skip


@pytest.mark.parametrize("report", REPORTED)
def test_settings_that_ended_a_published_cluster_are_found_before_a_start(report: str) -> None:
    recipe, level, check, words = REPORTED[report]
    nodes = tuple(f"spark-{i + 1}" for i in range(recipe.parallelism.nodes))
    own = {name: Facts() for name in nodes}
    shipped = memory_findings(load_recipe(recipe.name)[0], SHAPE, nodes, own)
    assert (level, check) not in {(item.level, item.check) for item in shipped}
    found = [item for item in memory_findings(recipe, SHAPE, nodes, own) if item.check == check]
    assert [(item.level, item.node) for item in found] == [(level, "spark-1")]
    assert words in found[0].evidence and found[0].fix


def test_the_draft_counts() -> None:
    """F49: out of memory seconds after the drafter began to load. Without it the same nodes have room."""
    recipe = load_recipe("v41-flash-3x")[0]
    dspark = recipe.extensions.dspark.model_copy(update={"enabled": False})
    plain = recipe.model_copy(update={"extensions": recipe.extensions.model_copy(update={"dspark": dspark})})
    spare = fit_recipe(recipe, SHAPE).budgets[0].idle_bytes
    total = round(constants().usable_gib.value * GIB) - spare + GIB
    own = {name: Facts(memory_total_bytes=total) for name in NODES}

    def refusals(asked: Recipe) -> set[str]:
        return {item.check for item in memory_findings(asked, SHAPE, NODES, own) if item.level == "refuse"}

    assert "memory-headroom" in refusals(recipe)
    assert "memory-headroom" not in refusals(plain)


def sparks(tmp_path: Path, *, with_checkpoint: bool) -> Case:
    """A triangle whose recorded nodes have a small V4.1 checkpoint, read by the real probe."""
    recipe = load_recipe("v41-flash-3x")[0]
    reports: dict[str, Any] = {}
    for name in ("spark_a", "spark_b", "spark_c"):
        tree = tree_of("triangle", name.replace("_", "-"), tmp_path / name)
        if with_checkpoint:
            tree.remove(f"{HOME}/models/m")
            write_checkpoint(tree.root / HOME.lstrip("/") / "models/m")
        reports[name] = report_of(tree)
    return case_of("triangle", recipe=recipe, **reports)


def test_the_index_on_the_nodes_is_counted(tmp_path: Path) -> None:
    case = sparks(tmp_path, with_checkpoint=True)
    recipe = load_recipe("v41-flash-3x")[0]
    facts = {node.name: Facts() for node in case.plan.nodes}
    assert [(item.level, item.check) for item in memory_fit(case, recipe, facts)] == [
        ("warn", "memory-chunk-times-context")
    ]
    store = case.reports["spark-a"].storage
    assert store and store.model and store.model.shape
    directory = tmp_path / "spark_a" / HOME.lstrip("/") / "models/m"
    seen = reported_shape(store.model.shape.config, store.model.shape.tensor_bytes, where="x")
    assert seen.part_bytes == checkpoint_shape(directory).part_bytes
    assert len(store.model.shape.tensor_bytes) < 150
    poor = facts | {"spark-b": Facts(memory_available_bytes=10 * GIB)}
    held = [item for item in memory_fit(case, recipe, poor) if item.check == "memory-held"]
    assert [(item.node, item.level) for item in held] == [("spark-b", "refuse")]
    wide = recipe.model_copy(
        update={"server": recipe.server.model_copy(update={"chunked_prefill_size": 4096})}
    )
    assert "memory-chunk-times-context" in {
        item.check for item in memory_fit(case, wide, facts) if item.level == "refuse"
    }


def test_without_index_recipe_or_facts_memory_is_not_checked(tmp_path: Path) -> None:
    recipe = load_recipe("v41-flash-3x")[0]
    plain = sparks(tmp_path / "plain", with_checkpoint=False)
    facts = {node.name: Facts() for node in plain.plan.nodes}
    known = sparks(tmp_path / "known", with_checkpoint=True)
    some = {name: own for name, own in facts.items() if name != "spark-b"}
    cases = [
        (plain, recipe, facts, "no node has a DeepSeek-V4.1 checkpoint"),
        (known, None, facts, "a plan file does not hold its recipe"),
        (known, recipe, some, "spark-b did not tell its memory"),
    ]
    for case, asked, own, words in cases:
        (found,) = memory_fit(case, asked, own)
        assert (found.level, found.check) == ("not checked", "memory-fit")
        assert words in found.evidence
    directory = tmp_path / "known/spark_a" / HOME.lstrip("/") / "models/m"
    next(directory.glob("*1-of-*.safetensors")).unlink()
    seen = shape_facts(directory)
    assert seen and "must name shards that are there, got 1 of 4" in seen["problem"]


def test_every_rule_of_fit_is_a_check_of_its_own() -> None:
    folder = Path(fit_rules.__file__).parent
    text = "".join(path.read_text() for path in folder.glob("*.py"))
    used = set(re.findall(r"(?:FitProblem\.(?:refuse|warn)|report)\(\s*\"([a-z-]+)\"", text))
    assert {f"memory-{name}" for name in used} | {"memory-fit", "memory-held"} == set(MEMORY_CHECKS)
