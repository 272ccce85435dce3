"""The collective probe with the engine's own torch between network namespaces: well, slow, and cut off."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from launcher.doctor.collective_result import CollectiveResult, collective_findings
from launcher.doctor.send_collective import send_collective
from launcher.make_plan import make_plan, run_ports
from launcher.plan import LaunchPlan
from tests.hosts import NETNS_MARKS, NetnsHosts
from tests.launcher.doctor.netns_cluster import assert_nothing_is_left, connected, netns_inputs
from tests.launcher.make_facts import all_facts

needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed here"
)
pytestmark = [*NETNS_MARKS, needs_torch, pytest.mark.slow, pytest.mark.timeout(180)]
SIZES = (4, 4 << 20)


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetnsHosts]:
    with NetnsHosts(2) as hosts:
        yield hosts


def probe(
    hosts: NetnsHosts, *, sizes: tuple[int, ...] = SIZES, limit_s: float = 60.0
) -> tuple[LaunchPlan, CollectiveResult]:
    inputs = netns_inputs(hosts, engine=sys.prefix)
    plan = make_plan(inputs.recipe, inputs.topology, all_facts(inputs.topology, inputs.recipe), run_id="r1")
    with connected(inputs) as remotes:
        return plan, send_collective(plan, remotes, sizes=sizes, limit_s=limit_s)


def test_a_healthy_pair_and_a_slow_link(hosts: NetnsHosts) -> None:
    _, result = probe(hosts)
    assert [rank.stage for rank in result.ranks] == ["done", "done"], [
        rank.last_words for rank in result.ranks
    ]
    assert [int(row["size_bytes"]) for row in result.rows()] == list(SIZES)
    fast = result.rows()[-1]["busbw_gbps"]
    slow_down = "tc qdisc replace dev fabric0 root tbf rate 100mbit burst 64kb latency 100ms"
    try:
        assert hosts["node2"].exec(["sh", "-c", slow_down]).returncode == 0
        _, slowed = probe(hosts)
    finally:
        hosts["node2"].exec(["tc", "qdisc", "del", "dev", "fabric0", "root"])
    (found,) = (item for item in collective_findings(slowed) if "bus bandwidth" in item.evidence)
    assert found.level == "warn"
    assert slowed.rows()[-1]["busbw_gbps"] < 0.15 < fast
    assert_nothing_is_left(hosts)


def test_a_rank_that_cannot_meet_the_others_is_named(hosts: NetnsHosts) -> None:
    port = run_ports("r1")[0] + 5
    rule = f"ipproto tcp sport {port} blackhole"
    assert hosts["node1"].exec(["sh", "-c", f"ip rule add {rule}"]).returncode == 0
    try:
        _, result = probe(hosts, limit_s=18.0)
    finally:
        hosts["node1"].exec(["sh", "-c", f"ip rule del {rule}"])
    (found,) = collective_findings(result)
    assert found.level == "refuse"
    assert "the gloo all-reduce must end, it did not" in found.evidence
    assert "node1 imported, node2 imported" in found.evidence
    assert result.seconds < 60
    assert_nothing_is_left(hosts)
