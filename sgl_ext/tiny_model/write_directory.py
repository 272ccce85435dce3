"""Puts a tiny model's directory in place as a whole: complete under its final name, or not there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from sgl_ext.errors import SettingError
from sgl_ext.write_atomically import write_atomically

MARK = "sparkctl_tiny_model"  # key in config.json of what we wrote, and so may replace


def write_directory(target: Path, files: Mapping[str, bytes]) -> bool:
    """Writes files to target; returns False where target already holds exactly these.

    An older tiny model there is replaced. Raises SettingError where target holds anything else: it may be a
    model that somebody needs.
    """
    is_there = target.exists() or target.is_symlink()
    if is_there and _holds(target, files):
        return False
    if is_there and not _is_ours(target):
        raise SettingError(
            f"The output directory must be new or hold a tiny model, got other content ({target}).",
            hint="name a directory that does not exist yet",
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        new, old = temporary / "new", temporary / "old"
        new.mkdir()
        for name, content in files.items():
            write_atomically(new / name, content)
        if is_there:
            target.rename(old)
        new.rename(target)
    finally:
        shutil.rmtree(temporary)
    return True


def _holds(target: Path, files: Mapping[str, bytes]) -> bool:
    if not target.is_dir() or {path.name for path in target.iterdir()} != set(files):
        return False
    return all((target / name).read_bytes() == content for name, content in files.items())


def _is_ours(target: Path) -> bool:
    try:
        config = json.loads((target / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and MARK in config
