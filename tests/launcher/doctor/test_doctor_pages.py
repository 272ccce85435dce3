"""docs/checks.md is what the checks say; docs/field-reports.md maps every report, to checks that exist and
cover it."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.doctor.check_names import check_names
from launcher.doctor.checks_page import checks_page
from launcher.doctor.examine import CHECKS

DOCS = Path(__file__).parents[3] / "docs"
ROW = re.compile(r"^\| (F\d+|S-[a-z0-9-]+) \| .*$", re.MULTILINE)


def rows() -> dict[str, str]:
    return {match.group(1): match.group(0) for match in ROW.finditer((DOCS / "field-reports.md").read_text())}


def linked(row: str) -> set[str]:
    return set(re.findall(r"\(checks\.md#([a-z0-9-]+)\)", row))


def test_the_page_of_checks_is_up_to_date() -> None:
    assert (DOCS / "checks.md").read_text() == checks_page(), (
        "python -m launcher.doctor.checks_page > docs/checks.md"
    )


def test_every_check_has_its_section() -> None:
    anchors = re.findall(r'<a id="([^"]+)"></a>', (DOCS / "checks.md").read_text())
    assert len(anchors) == len(set(anchors))
    assert set(anchors) == check_names()


def test_every_report_has_an_answer() -> None:
    reports = {name: row for name, row in rows().items() if name.startswith("F")}
    assert len(reports) == 76
    for name, row in reports.items():
        assert linked(row) or "design" in row or "cannot be seen from outside, because" in row, name


def test_at_least_forty_reports_have_a_check_whose_situation_a_test_reproduces() -> None:
    """A report counts when a test of this folder names it, and its row names a check."""
    texts = [path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__)]
    tested = {name for text in texts for name in re.findall(r"\b(?:F\d+|S-[a-z0-9-]+)\b", text)}
    found = {name for name, row in rows().items() if linked(row) and name in tested}
    assert len([name for name in found if name.startswith("F")]) >= 40, sorted(found)
    reports = {name: row for name, row in rows().items() if name.startswith("F") and linked(row)}
    seen = {name for name, row in reports.items() if "cannot be seen from outside" not in row}
    assert seen - tested == set()


def test_checks_and_reports_name_each_other() -> None:
    found = rows()
    assert set().union(*map(linked, found.values())) <= check_names()
    for item in CHECKS:
        for report in item.covers:
            assert report in found, f"{item.id}: {report}"
            assert item.id in linked(found[report]), f"{item.id} covers {report}, its row does not say so"
