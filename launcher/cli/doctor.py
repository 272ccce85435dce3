"""`sparkctl doctor`: what would make a start fail, found in seconds and before any weight is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import (
    AcceptKeysOption,
    JsonOption,
    NodesOption,
    PortOption,
    RecipeOption,
    TopologyOption,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from launcher.doctor.finding import Finding
    from launcher.doctor.run_doctor import DoctorResult

ORDER = ("refuse", "warn", "not checked", "ok")
SHOWN_ENVIRONMENT = ("NCCL_", "GLOO_", "SGLANG_HOST_IP")


def doctor(
    nodes: NodesOption = None,
    recipe: RecipeOption = None,
    topology: TopologyOption = None,
    port: PortOption = None,
    collective: Annotated[
        bool,
        typer.Option(
            "--collective/--no-collective", help="Also run all-reduces from 4 B to 256 MiB between the nodes."
        ),
    ] = True,
    skip: Annotated[
        list[str] | None,
        typer.Option("--skip", metavar="CHECK", help="Do not let this check decide (see its name)."),
    ] = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Check nodes, fabric, software and disks for this recipe: ok, warn or refuse, each with its fix.

    \b
    sparkctl doctor --recipe v41-flash-3x                  all checks, then all-reduces between the nodes
    sparkctl doctor --recipe v41-flash-3x --no-collective  facts and packets only, a few seconds

    Changes nothing on the nodes. Exit status 5 when a check refuses. docs/checks.md lists the checks.
    """
    from launcher.choose_inputs import choose_inputs
    from launcher.connect import SshOptions, connect_all
    from launcher.doctor.check_names import known_checks
    from launcher.doctor.run_doctor import run_doctor
    from launcher.errors import PreflightRefused

    skipped = known_checks(tuple(skip or ()))
    inputs = choose_inputs(recipe=recipe, topology=topology, nodes=nodes, port=port)
    with connect_all(inputs.topology.nodes, SshOptions(accept_new_host_keys=accept_new_host_keys)) as remotes:
        result = run_doctor(
            inputs, remotes, collective=collective, skip=skipped, tell=lambda text: typer.echo(text, err=True)
        )
    if json:
        _show_json(result, skipped)
    else:
        _show(result, skipped)
    refusals = result.refusals(skipped)
    if refusals:
        names = ", ".join(dict.fromkeys(item.check for item in refusals))
        error = PreflightRefused(
            f"{len(refusals)} finding(s) refuse a start: {names}", hint="fix them, then: sparkctl doctor"
        )
        raise error


def _show(result: DoctorResult, skipped: tuple[str, ...]) -> None:
    for line in finding_lines(result.findings, skipped):
        typer.echo(line)
    typer.echo("")
    for line in environment_lines(result):
        typer.echo(line)
    for line in cabling_lines(result):
        typer.echo(line)
    for line in collective_lines(result):
        typer.echo(line)
    levels = [item.level for item in result.findings]
    counts = ", ".join(f"{levels.count(level)} {level}" for level in ("ok", "warn", "refuse", "not checked"))
    typer.echo(
        f"{counts}; {', '.join(f'{name[:-2]} {seconds:.1f} s' for name, seconds in result.seconds.items())}"
    )


def finding_lines(findings: Sequence[Finding], skipped: tuple[str, ...]) -> list[str]:
    """The worst first; what is the same on several nodes is said once, with each node's own evidence."""
    from launcher.doctor.finding import merge_not_checked

    groups: dict[tuple[str, ...], list[Finding]] = {}
    for item in sorted(merge_not_checked(findings), key=lambda item: ORDER.index(item.level)):
        groups.setdefault(_group_key(item), []).append(item)
    return [line for members in groups.values() for line in _group_lines(members, skipped)]


def _group_key(item: Finding) -> tuple[str, ...]:
    if item.level == "not checked":
        return item.level, item.node, item.evidence
    return item.level, item.check, item.consequence, item.fix


def _group_lines(members: list[Finding], skipped: tuple[str, ...]) -> list[str]:
    first = members[0]
    if first.level == "not checked":
        fix = f" -> {first.fix}" if first.fix else ""
        return [f"{first.level}: {first.check}: {first.node}: {first.evidence}{fix}"]
    if first.level == "ok":
        where = "" if first.node == "all" else f"{first.node}: "
        return [f"{first.level:7} {first.check}: {where}{first.evidence}"]
    lines = [f"{first.level:7} {first.check}" + (" (skipped)" if first.check in skipped else "")]
    lines += [f"        {item.node}: {item.evidence}" for item in members]
    if first.consequence:
        lines.append(f"        then: {first.consequence}")
    return [*lines, f"        fix:  {first.fix}", f"        see:  {first.page}"]


def environment_lines(result: DoctorResult) -> list[str]:
    """What NCCL and Gloo are told on each node: never one value for all, never a default that nobody sees."""
    lines = ["resolved for NCCL and Gloo:"]
    for node in result.case.plan.nodes:
        chosen = [f"{k}={v}" for k, v in node.environment.items() if k.startswith(SHOWN_ENVIRONMENT)]
        lines.append(f"  {node.name}: {' '.join(chosen)}")
        lines += [f"    note: {note}" for note in node.notes]
    return lines


def cabling_lines(result: DoctorResult) -> list[str]:
    from launcher.doctor.cabling import cabling_of

    found = cabling_of(result.case).lines()
    return ["cables, as packets found them:", *(f"  {line}" for line in found)] if found else []


def collective_lines(result: DoctorResult) -> list[str]:
    if result.collective is None:
        return []
    rows = result.collective.rows()
    return [f"{result.collective.backend} all-reduce, the slowest rank's median:"] + [
        f"  {int(row['size_bytes']):>10} B  {row['seconds'] * 1e3:10.3f} ms  {row['busbw_gbps']:8.3f} Gb/s"
        for row in rows
    ]


def _show_json(result: DoctorResult, skipped: tuple[str, ...]) -> None:
    import json
    from dataclasses import asdict

    value = {
        "findings": [{**asdict(item), "page": item.page} for item in result.findings],
        "skipped": list(skipped),
        "environment": {
            node.name: {k: v for k, v in node.environment.items() if k.startswith(SHOWN_ENVIRONMENT)}
            for node in result.case.plan.nodes
        },
        "cables": [line.strip() for line in cabling_lines(result)[1:]],
        "collective": {"backend": result.collective.backend, "rows": result.collective.rows()}
        if result.collective
        else None,
        "seconds": result.seconds,
    }
    typer.echo(json.dumps(value, indent=2))
