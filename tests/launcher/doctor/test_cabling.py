"""Which cable ends where, from hellos as a recorded triangle, pair and switch give them."""

from __future__ import annotations

from launcher.doctor.cabling import cabling_of
from launcher.doctor.finding import Finding
from launcher.doctor.reach_report import Hello, ReachReport
from tests.launcher.doctor.clusters import P0, P1, case_of, problems, topology_for

A, B, C = "spark-a", "spark-b", "spark-c"


def hellos(*cables: tuple[str, str, str, str]) -> ReachReport:
    """Each cable both ways; the twins of a connector hear the same, so one of them is enough."""
    said = []
    for one, one_port, other, other_port in cables:
        said.append(Hello(source=one, source_interface=one_port, target=other, target_interface=other_port))
        said.append(Hello(source=other, source_interface=other_port, target=one, target_interface=one_port))
    return ReachReport(hellos=tuple(said))


def found(layout: str, reach: ReachReport) -> list[Finding]:
    return [item for item in problems(case_of(layout, reach=reach)) if item.check == "cabling"]


RIGHT = ((A, P0, B, P1), (B, P0, C, P1), (C, P0, A, P1))


def test_a_triangle_from_port_0_to_port_1_is_right() -> None:
    reach = hellos(*RIGHT)
    assert found("triangle", reach) == []
    lines = cabling_of(case_of("triangle", reach=reach)).lines()
    assert lines == ["spark-a p0 - spark-b p1", "spark-a p1 - spark-c p0", "spark-b p0 - spark-c p1"]


def test_a_triangle_cabled_p0_to_p0_gets_a_plan() -> None:
    """F27: links are up, ibv_modify_qp times out."""
    problems_found = found("triangle", hellos((A, P0, B, P0), (B, P1, C, P1), (C, P0, A, P1)))
    first = problems_found[0]
    assert (first.node, first.level) == (A, "refuse")
    assert "p0 of spark-a leads to p0 of spark-b" in first.evidence
    assert first.fix == "plan: spark-a p0 to spark-b p1; spark-b p0 to spark-c p1; spark-c p0 to spark-a p1"


def test_ports_swapped_at_one_end_do_not_share_a_subnet() -> None:
    """S-crossed: every port is up and every address is right, and the two ends of a cable cannot talk."""
    ends = [item.evidence for item in found("pair", hellos((A, P0, B, P1)))]
    crossed = [
        item.evidence for item in found("triangle", hellos((A, P1, B, P0), (B, P1, C, P0), (C, P1, A, P0)))
    ]
    assert any("must share a subnet" in text for text in crossed)
    # The pair's second connector is not in its plan, so its cable is in the wrong connector.
    assert any("no node of the cluster answers behind it" in text for text in ends)


def test_crossed_ports_are_accepted_where_the_subnets_fit() -> None:
    """F30: a cable from a left to a right port is fine when the addresses say the same."""
    assert found("triangle", hellos(*RIGHT)) == []


def test_a_port_that_leads_out_of_the_cluster_is_refused() -> None:
    """F33: one of four interfaces goes to a PC."""
    (finding,) = found("triangle", hellos(*RIGHT[:2]))[:1]
    assert "no node of the cluster answers behind it" in finding.evidence
    assert "fabric.hcas" in finding.fix


def test_three_nodes_with_two_connectors_up_are_no_switch() -> None:
    """F31: a fresh triangle described as a switch."""
    topology = topology_for("triangle")
    as_switch = topology.model_copy(update={"links": topology.links.model_copy(update={"layout": "switch"})})
    case = case_of("triangle", topology=as_switch, reach=hellos(*RIGHT))
    layouts = [item for item in problems(case) if item.check == "layout"]
    assert {item.level for item in layouts} == {"warn"}
    assert "three nodes cabled like that are a triangle" in layouts[0].evidence
