"""docs/checks.md and docs/checks/ are what the checks say; docs/field-reports.md maps every report, to checks
that exist and cover it."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.doctor.check_names import check_names
from launcher.doctor.check_pages import check_pages
from launcher.doctor.examine import CHECKS
from launcher.doctor.field_reports import FieldReport, field_reports
from launcher.doctor.finding import Finding

REPOSITORY = Path(__file__).parents[3]
DOCS = REPOSITORY / "docs"
TESTS = REPOSITORY / "tests"
# Numbers of published reports that nobody gave.
GAPS = {25, 28, 32, 36, 39, 41, 54, 63, 69, 73, 77, 82}
UNSEEN = "cannot be seen from outside"


def reports() -> dict[str, FieldReport]:
    return field_reports((DOCS / "field-reports.md").read_text())


def named_in_tests() -> set[str]:
    """Reports and readings that a test of the launcher names; the issue asks that it reproduces them."""
    texts = [path.read_text() for path in (TESTS / "launcher").rglob("test_*.py") if path != Path(__file__)]
    return {name for text in texts for name in re.findall(r"\b(?:F\d+|S-[a-z0-9-]+)\b", text)}


def test_the_pages_of_checks_are_up_to_date() -> None:
    pages = check_pages(reports())
    there = {f"checks/{path.name}" for path in (DOCS / "checks").iterdir()}
    assert there == pages.keys() - {"checks.md"}, "python -m launcher.doctor.check_pages"
    for path, text in pages.items():
        assert (DOCS / path).read_text() == text, f"{path}: python -m launcher.doctor.check_pages"


def test_every_check_has_its_page_and_every_finding_names_it() -> None:
    assert {path.stem for path in (DOCS / "checks").iterdir()} == check_names()
    for name in (*check_names(), "cma, swap"):
        finding = Finding(level="warn", check=name, node="a", evidence="e", consequence="c", fix="f")
        assert (REPOSITORY / finding.page).is_file(), finding.page
        assert finding.hint == f"f ({finding.page})"


def test_every_page_says_what_to_do_and_names_code_that_exists() -> None:
    for name in check_names():
        page = (DOCS / "checks" / f"{name}.md").read_text()
        for key in ("Otherwise", "Fix", "Looked at", "Start all the same", "Code"):
            assert re.search(rf"^- {key}: \S.*\.$", page, re.MULTILINE), (name, key)
        (code,) = re.findall(r"^- Code: `([^`]+)`", page, re.MULTILINE)
        assert (REPOSITORY / code).is_file(), (name, code)


def test_every_report_has_an_answer() -> None:
    found = {name: report for name, report in reports().items() if name.startswith("F")}
    assert set(found) == {f"F{number}" for number in range(1, 89) if number not in GAPS}
    for name, report in found.items():
        assert report.source.startswith("<https://"), name
        assert report.checks or "design" in report.answer or f"{UNSEEN}, because" in report.answer, name


def test_at_least_forty_reports_have_a_check_whose_situation_a_test_reproduces() -> None:
    seen = {name for name, report in reports().items() if report.checks and UNSEEN not in report.answer}
    published = {name for name in seen if name.startswith("F")}
    assert len(published) >= 40, sorted(published)
    assert seen - named_in_tests() == set()


def test_every_ill_reading_has_a_check_and_a_test() -> None:
    readings = {name: report for name, report in reports().items() if name.startswith("S-")}
    assert all(report.checks for report in readings.values())
    assert readings.keys() - named_in_tests() == set()
    # Nor does a check or a test speak of one that the table lacks.
    covered = {name for item in CHECKS for name in item.covers if name.startswith("S-")}
    assert {name for name in {*named_in_tests(), *covered} if name.startswith("S-")} <= readings.keys()


def test_checks_and_reports_name_each_other() -> None:
    found = reports()
    assert {name for report in found.values() for name in report.checks} <= check_names()
    for item in CHECKS:
        for report in item.covers:
            assert report in found, f"{item.id}: {report}"
            assert item.id in found[report].checks, f"{item.id} covers {report}, its row does not say so"
