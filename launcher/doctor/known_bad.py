"""Kernels and drivers that were reported to break a Spark, read from known_bad.yaml beside this package."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import Field

from launcher.frozen_model import FrozenModel

FILE = Path(__file__).parents[1] / "known_bad.yaml"


class KnownBad(FrozenModel):
    kernel: str | None = None
    driver: str | None = None
    unless_cmdline: str | None = None
    level: Literal["warn", "refuse"]
    why: str
    fix: str
    sources: Annotated[tuple[str, ...], Field(strict=False, min_length=1)]

    def fits(self, *, kernel: str, driver: str | None, cmdline: str | None) -> bool:
        """Whether a machine with this kernel, driver and kernel command line is the one that was reported."""
        if self.unless_cmdline and self.unless_cmdline in (cmdline or "").split():
            return False
        if self.kernel and not fnmatchcase(kernel, self.kernel):
            return False
        return not self.driver or (driver is not None and fnmatchcase(driver, self.driver))


class KnownBadList(FrozenModel):
    schema_version: Literal[1]
    entries: Annotated[tuple[KnownBad, ...], Field(strict=False)]


@functools.cache
def known_bad() -> tuple[KnownBad, ...]:
    return KnownBadList.model_validate(yaml.safe_load(FILE.read_text())).entries
