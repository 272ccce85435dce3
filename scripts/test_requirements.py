"""Prints what the tests need: pip would build the C++ core a second time for `-e .[test]`."""

from __future__ import annotations

import tomllib
from pathlib import Path

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]

if __name__ == "__main__":
    print(*PROJECT["optional-dependencies"]["test"], sep="\n")
