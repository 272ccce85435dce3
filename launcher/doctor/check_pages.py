"""docs/checks.md and a page for each check, docs/checks/NAME.md, made from the checks themselves and from
docs/field-reports.md, so that none is without its page. `python -m launcher.doctor.check_pages` writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.doctor.check import Check
from launcher.doctor.check_names import AUDIT, LAUNCH_CHECKS
from launcher.doctor.collective_result import CHECK as COLLECTIVE
from launcher.doctor.examine import ANSWER, GROUPS, TOOL
from launcher.doctor.field_reports import FieldReport, field_reports
from launcher.doctor.memory_fit import CONSEQUENCE, MEMORY_CHECKS
from launcher.preflight import LOCK_CHECK

DOCS = Path(__file__).parents[2] / "docs"
INTRODUCTION = """# What `sparkctl doctor` checks

`sparkctl doctor` asks all nodes at once for facts, sends packets between them, and judges both; when nothing
refuses, it runs all-reduces between them. It changes nothing. `sparkctl up` does the same before it starts
anything.

- `ok`: it was looked at on every node, and it is as it must be.
- `warn`: it may cost speed or a later failure; a start goes on.
- `refuse`: a start cannot end well. `--skip CHECK` starts all the same; the run's record keeps which were
  skipped.
- `not checked`: nothing was seen of a node, or the probe was not run; this is never called ok.

Checks that make no sense on the nodes at hand (RDMA on a machine without it) are left out. `--json` prints
everything. Each check has a page, which its findings name.

GPU, NCCL and RoCE readings follow published dumps of real Sparks; they were not run on one here. Packets and
gloo all-reduces were, between network namespaces.

On four nodes in network namespaces of one x86 machine the command took 1.7 s, and 6.5 s with the all-reduces
(medians of three; `results/doctor-netns-4x-epyc-x86-20261130/`, `python -m benchmarks.doctor`).
"""
MEMORY_INTRODUCTION = (
    "The rules of [fit](fit.md) on the checkpoint of the nodes and the memory that they report.\n"
)
LAUNCH_INTRODUCTION = (
    "`sparkctl up` makes these from the plan; `sparkctl doctor` shows them too, but for the last two.\n"
)
EVERYWHERE = "on every node"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`when`: where the check is made. `code`: the file that makes it."""

    name: str
    means: str
    why: str
    fix: str
    when: str
    code: str


PROBE = (
    Page(
        name=ANSWER,
        means="every node answers the probe, in time and whole",
        why="what was not seen cannot be checked",
        fix="ssh to the node and look: python3 (3.10 or newer), disk, processes, ~/.bashrc that prints",
        when=EVERYWHERE,
        code="launcher/doctor/gather_reports.py",
    ),
    Page(
        name=TOOL,
        means="every tool that the probe asks is installed and answers",
        why="what it tells could not be checked",
        fix="install it (ip: iproute2, ibv_devinfo: ibverbs-utils), or find out why it hangs",
        when=EVERYWHERE,
        code="launcher/node/probe_root.py",
    ),
    Page(
        name=COLLECTIVE,
        means="all-reduces from 4 B to 256 MiB work between all nodes, in the engine's own Python and "
        "environment, at the expected speed",
        why="the engine would stand still or crawl at the same place, after minutes of loading",
        fix="the finding names the rank that got least far and its last words; NCCL that takes TCP is "
        "refused",
        when="where the plan has several machines, after everything else and only when nothing refuses; a "
        "size that would take over 6 s is left out",
        code="launcher/doctor/send_collective.py",
    ),
)


def check_pages(reports: Mapping[str, FieldReport]) -> dict[str, str]:
    """Path below docs -> text."""
    groups = _groups()
    pages = {
        f"checks/{page.name}.md": "\n".join(_page(page, reports))
        for members in groups.values()
        for page in members
    }
    return {"checks.md": "\n".join(_index(groups)), **pages}


def _groups() -> dict[str, list[Page]]:
    found = {"The probe itself": list(PROBE)}
    for group, checks in GROUPS.items():
        found[group.capitalize()] = [_of_check(item) for item in checks]
    found["Memory"] = [
        Page(
            name=name,
            means=means,
            why=CONSEQUENCE,
            fix="as the finding says; try values with sparkctl fit",
            when="where the engine runs on GPUs",
            code="launcher/doctor/memory_fit.py",
        )
        for name, means in MEMORY_CHECKS.items()
    ]
    found["Of a launch"] = [
        Page(
            name=name,
            means=means,
            why=why,
            fix=fix,
            when="by sparkctl up, on every node" if name == LOCK_CHECK else EVERYWHERE,
            code="launcher/preflight.py",
        )
        for name, (means, why, fix) in LAUNCH_CHECKS.items()
    ]
    audit = Page(
        name=AUDIT,
        means="when a token was generated, every rank reports that it runs as the plan says",
        why="sparkctl up ends the run, with exit status 6",
        fix="each difference names node, rank, what is planned and what is in effect; see sparkctl audit",
        when="by sparkctl up, on every rank",
        code="launcher/audit_run.py",
    )
    found["Of a launch"].append(audit)
    return found


def _of_check(item: Check) -> Page:
    when = item.applies.__doc__
    assert when, f"{item.id}: its `applies` must say in words where the check is made"
    code = f"{item.find.__module__.replace('.', '/')}.py"
    return Page(name=item.id, means=item.means, why=item.why, fix=item.fix, when=when, code=code)


def _index(groups: Mapping[str, list[Page]]) -> Iterator[str]:
    yield INTRODUCTION
    introductions = {"Memory": MEMORY_INTRODUCTION, "Of a launch": LAUNCH_INTRODUCTION}
    for group, pages in groups.items():
        yield f"## {group}\n"
        if group in introductions:
            yield introductions[group]
        yield "| check | ok means |\n|---|---|"
        for page in pages:
            yield f"| [{page.name}](checks/{page.name}.md) | {_sentence(page.means)} |"
        yield ""


def _page(page: Page, reports: Mapping[str, FieldReport]) -> Iterator[str]:
    yield f"# {page.name}\n"
    yield f"{_sentence(page.means)}\n"
    yield f"- Otherwise: {page.why}."
    yield f"- Fix: {page.fix}."
    yield f"- Looked at: {page.when}."
    yield f"- Start all the same: `sparkctl up --skip {page.name}`; the run's record keeps it."
    yield f"- Code: `{page.code}`."
    own = [report for report in reports.values() if page.name in report.checks]
    published = [report for report in own if report.source]
    if published:
        yield "\n## Reported by users\n"
        yield "What else answers each of them: [field reports](../field-reports.md).\n"
        for report in published:
            yield f"- {report.name}: {report.text} ({report.source})"
    readings = [report for report in own if not report.source]
    if readings:
        yield "\n## Ill readings\n"
        for report in readings:
            yield f"- {report.name}: {report.text}"
    yield "\n[All checks](../checks.md)\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def main() -> None:
    pages = check_pages(field_reports((DOCS / "field-reports.md").read_text()))
    (DOCS / "checks").mkdir(exist_ok=True)
    for old in (DOCS / "checks").glob("*.md"):
        if f"checks/{old.name}" not in pages:
            old.unlink()
    for path, text in pages.items():
        (DOCS / path).write_text(text)


if __name__ == "__main__":
    main()
