"""Installed versions of what a candidate needs, and a sentence for what is missing or too old."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import metadata

from sgl_ext.experts.candidate import Presence


def find_packages(minimum: Mapping[str, str]) -> Presence:
    """minimum: distribution -> lowest version whose interface the candidate was written for."""
    versions, wrong = {}, []
    for name, lowest in minimum.items():
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{name} is not installed")
            continue
        if _numbers(versions[name]) < _numbers(lowest):
            wrong.append(f"{name} is {versions[name]}, older than {lowest}")
    return Presence(missing="; ".join(wrong) or None, versions=versions)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
