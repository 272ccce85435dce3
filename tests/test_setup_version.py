"""One version everywhere, and a changelog that knows it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_changelog_has_the_version_of_the_distribution() -> None:
    version = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["version"]
    headings = re.findall(
        r"^## \[(.+?)\](?: - (\S+))?$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    released = [(name, date) for name, date in headings if name != "Unreleased"]
    assert released, "CHANGELOG.md must have a section ## [VERSION] - DATE"
    assert released[0][0] == version
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d|unreleased", date) for _, date in released)


def test_every_shipped_file_type_is_packaged() -> None:
    """A data file that setuptools leaves out works from the checkout and fails from a wheel."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    patterns = project["tool"]["setuptools"]["package-data"]["*"]
    packages = ("launcher", "engram", "sgl_ext", "recipes")
    left_out = [
        str(path.relative_to(REPOSITORY))
        for package in packages
        for path in sorted((REPOSITORY / package).rglob("*"))
        if path.is_file()
        and path.suffix not in {".py", ".pyc", ".so"}
        and not path.name.startswith(".")  # settings of tools, such as .clang-format
        and not any(path.match(pattern) for pattern in patterns)
    ]
    assert left_out == []
