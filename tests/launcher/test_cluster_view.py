"""What counts as a failure of a node, and where it began."""

from __future__ import annotations

import pytest

from launcher.cluster_view import BEAT_LOST_S
from tests.launcher.local_plan import end, serving_view, tell

LATE_S = BEAT_LOST_S + 1


def beat(view, now_s: float, *names: str) -> None:  # type: ignore[no-untyped-def]
    for name in names or view.nodes:
        view.nodes[name].feed({"beat": now_s, "supervisor": "alive"}, now_s)


def test_a_serving_cluster() -> None:
    view = serving_view()
    assert view.all_ranks_live(1.0) and view.first_failure(1.0) is None
    assert view.failed(1.0) == {} and view.silent(1.0) == {}


def test_a_rank_that_was_never_seen_is_not_live() -> None:
    view = serving_view()
    view.nodes["node-1"].state["ranks"] = {}
    assert not view.all_ranks_live(1.0) and view.failed(1.0) == {}


def test_the_first_end_counts_by_our_own_clock_not_by_the_nodes() -> None:
    view = serving_view()
    end(view, "node-2", 5.0, "rank", "scheduler ended", signal=9)
    end(view, "node-0", 5.3, "engine", "the engine ended", exit_code=1)
    view.nodes["node-0"].state["end"]["at_unix"] = -1000.0  # its clock is far behind
    assert view.first_failure(6.0) == "node-2"


@pytest.mark.parametrize("kind", ["peer", "peer-silent"])
def test_an_echo_is_never_where_it_began(kind: str) -> None:
    view = serving_view()
    end(view, "node-0", 5.0, kind, "node node-1 ended", peer="node-1")
    end(view, "node-1", 5.2, "rank", "scheduler ended", signal=9)
    assert view.first_failure(6.0) == "node-1"


def test_our_own_lost_network_is_no_failure() -> None:
    """Nobody answers us, but nothing says that the nodes miss each other."""
    view = serving_view()
    assert view.failed(LATE_S) == {} and set(view.silent(LATE_S)) == {"node-0", "node-1", "node-2"}
    assert not view.all_ranks_live(LATE_S)
    beat(view, LATE_S)
    assert view.silent(LATE_S) == {} and view.all_ranks_live(LATE_S)


def test_a_node_that_neither_we_nor_its_head_hear_has_failed() -> None:
    view = serving_view()
    beat(view, LATE_S, "node-0", "node-1")
    assert view.failed(LATE_S) == {}
    tell(view, "node-0", LATE_S, quiet_peers=["node-2"])
    assert list(view.failed(LATE_S)) == ["node-2"] and "cable" in view.failed(LATE_S)["node-2"]


def test_a_node_that_only_its_head_misses_is_not_declared_dead_by_us() -> None:
    """We hear it: its supervisor, not we, decides when its peers are lost."""
    view = serving_view()
    beat(view, LATE_S)
    tell(view, "node-0", LATE_S, quiet_peers=["node-2"])
    assert view.failed(LATE_S) == {}


def test_the_head_is_missed_by_its_workers() -> None:
    view = serving_view()
    beat(view, LATE_S, "node-1", "node-2")
    tell(view, "node-1", LATE_S, quiet_peers=["head"])
    assert list(view.failed(LATE_S)) == ["node-0"]


@pytest.mark.parametrize("sign", ["gone", "frozen"])
def test_a_lost_supervisor_is_a_failure_at_once(sign: str) -> None:
    view = serving_view()
    view.nodes["node-1"].feed({"beat": 1.0, "supervisor": sign}, 1.0)
    assert list(view.failed(1.0)) == ["node-1"] and "supervisor" in view.failed(1.0)["node-1"]


def test_stopped_processes_are_told_by_node() -> None:
    view = serving_view()
    tell(view, "node-2", 1.0, frozen=[7])
    assert view.frozen() == {"node-2": [7]} and view.failed(1.0) == {}
