"""docs/field-reports.md as data: each published report and ill reading, and the checks that its row names."""

from __future__ import annotations

import re
from dataclasses import dataclass

ROW = re.compile(
    r"^\| (?P<name>F\d+|S-[a-z0-9-]+) \| (?P<text>.*?) \| (?P<answer>.*?) (?:\| (?P<source>.*?) )?\|$", re.M
)
LINK = re.compile(r"\(checks/([a-z0-9-]+)\.md\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldReport:
    """`source`: its public address, empty for an ill reading."""

    name: str
    text: str
    answer: str
    source: str

    @property
    def checks(self) -> frozenset[str]:
        return frozenset(LINK.findall(self.answer))


def field_reports(page: str) -> dict[str, FieldReport]:
    """Name -> report, in the order of the page."""
    found = [
        FieldReport(name=row["name"], text=row["text"], answer=row["answer"], source=row["source"] or "")
        for row in ROW.finditer(page)
    ]
    return {report.name: report for report in found}
