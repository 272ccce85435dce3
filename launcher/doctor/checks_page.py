"""docs/checks.md, made from the checks themselves, so that no check is without its section: print with
`python -m launcher.doctor.checks_page`."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.doctor.check import Check
from launcher.doctor.check_names import AUDIT, LAUNCH_CHECKS
from launcher.doctor.collective_result import CHECK as COLLECTIVE
from launcher.doctor.examine import ANSWER, GROUPS, TOOL
from launcher.doctor.memory_fit import CONSEQUENCE, MEMORY_CHECKS

INTRODUCTION = """# What `sparkctl doctor` checks

`sparkctl doctor` asks all nodes at once for facts, sends packets between them, and judges both. It changes
nothing.
`sparkctl up` runs the same checks, but for the all-reduces, before it starts anything.

- `ok`: it was looked at on every node, and it is as it must be.
- `warn`: it may cost speed or a later failure; a start goes on.
- `refuse`: a start cannot end well. `--skip CHECK` starts all the same; the run's record keeps which were
skipped.
- `not checked`: nothing was seen of a node, or the probe was not run; this is never called ok.

Checks that make no sense on the nodes at hand (RDMA on a machine without it) are left out. `--json` prints
everything.

GPU, NCCL and RoCE readings follow published dumps of real Sparks; they were not run on one here. Packets
and gloo
all-reduces were, between network namespaces.

On four nodes in network namespaces of one x86 machine the command took 1.7 s, and 6.5 s with the all-reduces
(medians of three; `results/doctor-netns-4x-epyc-x86-20261130/`, `python -m benchmarks.doctor`).
"""
PROBE = (
    (
        ANSWER,
        "every node answers the probe, in time and whole",
        "what was not seen cannot be checked",
        "ssh to the node and look: python3 (3.10 or newer), disk, processes, ~/.bashrc that prints",
    ),
    (
        TOOL,
        "every tool that the probe asks is installed and answers",
        "what it tells could not be checked",
        "install it (ip: iproute2, ibv_devinfo: ibverbs-utils), or find out why it hangs",
    ),
    (
        COLLECTIVE,
        "all-reduces from 4 B to 256 MiB work between all nodes, in the engine's own Python and environment, "
        "at the expected speed",
        "the engine would stand still or crawl at the same place, after minutes of loading",
        "the finding names the rank that got least far and its last words; NCCL that takes TCP is refused",
    ),
)


def checks_page() -> str:
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield "## The probe itself\n"
    for name, means, why, fix in PROBE:
        yield from _section(name, means, why, fix)
    for group, checks in GROUPS.items():
        yield f"## {group.capitalize()}\n"
        for item in checks:
            yield from _section(item.id, item.means, item.why, item.fix, reports=_reports(item))
    yield "## Memory\n"
    yield "The rules of [fit](fit.md) on the checkpoint of the nodes and the memory that they report.\n"
    for name, means in MEMORY_CHECKS.items():
        yield from _section(name, means, CONSEQUENCE, "as the finding says; try values with sparkctl fit")
    yield "## Of a launch\n"
    yield "`sparkctl up` makes these from the plan; `sparkctl doctor` shows them too.\n"
    for name, means in LAUNCH_CHECKS.items():
        yield from _section(name, means, "sparkctl up refuses to start", "as the finding says")
    yield from _section(
        AUDIT,
        "when a token was generated, every rank reports that it runs as the plan says",
        "sparkctl up ends the run, with exit status 6",
        "each difference names node, rank, what is planned and what is in effect; see sparkctl audit",
    )


def _reports(item: Check) -> str:
    return ", ".join(name for name in item.covers if name.startswith("F"))


def _section(name: str, means: str, why: str, fix: str, *, reports: str = "") -> Iterator[str]:
    yield f'<a id="{name}"></a>\n\n### {name}\n'
    yield f"{_sentence(means)}\n"
    yield f"- Otherwise: {why}."
    yield f"- Fix: {fix}."
    if reports:
        yield f"- Reported as [{reports}](field-reports.md)."
    yield ""


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


if __name__ == "__main__":
    print(checks_page(), end="")
