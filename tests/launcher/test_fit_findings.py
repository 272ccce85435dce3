"""Memory as preflight and doctor see it: the plan's recipe against what the nodes report."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from launcher.compose_recipe import load_recipe
from launcher.fit.constants import GIB
from launcher.fit.memory_findings import memory_findings
from launcher.fit.model_shape import ModelShape
from launcher.preflight import Finding
from launcher.recipe import Recipe
from tests.launcher.fit_settings import SHAPE

NODES = ("spark-1", "spark-2", "spark-3")
# MemTotal of a healthy Spark.
TOTAL = 127_600_748 * 1024


@dataclass(frozen=True, kw_only=True)
class Plan:
    recipe: Recipe
    shape: ModelShape = SHAPE
    node_names: tuple[str, ...] = NODES


@dataclass(frozen=True, kw_only=True)
class Facts:
    memory_available_bytes: int = round(118.2 * GIB)
    memory_total_bytes: int | None = TOTAL


def find(**facts: Facts) -> tuple[Finding, ...]:
    plan = Plan(recipe=load_recipe("v41-flash-3x")[0])
    found = memory_findings(plan, {name: facts.get(name.replace("-", "_"), Facts()) for name in NODES})
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
