"""Is the checkpoint here what its manifest says: sizes and stamps in a moment, or every byte again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_hash import hash_files
from launcher.node.weights_manifest import (
    is_verified,
    need_manifest,
    partial_path,
    place,
    write_manifest,
)
from launcher.node.weights_report import Report
from launcher.node.weights_scan import check


def weights_verify(*, models: str, model_path: str, quick: bool) -> None:
    """Last line: {"done": {"complete", "left_out", "whole", "files": {name: sha256}, "wrong": [[name, why]],
    "missing": [name], "partial_bytes": n, "have_bytes": n, "total_bytes": n}}. Every wrong file is told.
    """
    directory = place(models, model_path)
    manifest = need_manifest(directory)
    files = manifest["files"]
    wrong, missing = _look(directory, files)
    bad = {name for name, _ in wrong} | set(missing)
    good = {name for name in files if name not in bad}
    if quick:
        for name in sorted(good):
            if not is_verified(directory, name, files[name]):
                wrong.append((name, "it changed since it was hashed (time or inode)"))
    else:
        wrong += _hash(directory, manifest, good)
    if not wrong and not missing:
        try:
            check(directory)
        except Refused as refusal:
            wrong.append(("index and shards", refusal.message))
    bad = {name for name, _ in wrong}
    partial = sum(_size(partial_path(directory, name)) or 0 for name in missing)
    answer(
        {
            "done": {
                "complete": manifest["complete"] and not wrong and not missing,
                "left_out": manifest["left_out"],
                "whole": manifest.get("whole", {}),
                "files": {name: entry["sha256"] for name, entry in files.items()},
                "wrong": sorted(wrong),
                "missing": missing,
                "partial_bytes": partial,
                "have_bytes": sum(
                    entry["size_bytes"]
                    for name, entry in files.items()
                    if name not in bad and name not in missing
                ),
                "total_bytes": sum(entry["size_bytes"] for entry in files.values()),
            }
        }
    )


def _look(directory: Path, files: dict[str, Any]) -> tuple[Any, ...]:
    wrong, missing = [], []
    for name, entry in sorted(files.items()):
        size = _size(directory / name)
        if size is None:
            missing.append(name)
        elif size != entry["size_bytes"]:
            wrong.append((name, f"{entry['size_bytes']} bytes expected, got {size}"))
    return wrong, missing


def _hash(directory: Path, manifest: dict[str, Any], names: set[str]) -> list[Any]:
    files = manifest["files"]
    with Report("verify", sum(files[name]["size_bytes"] for name in names)) as report:
        hashed = hash_files({name: directory / name for name in names}, report.add)
    wrong = []
    for name, result in hashed.items():
        if isinstance(result, Refused):
            wrong.append((name, result.message))
        elif result[0] != files[name]["sha256"]:
            wrong.append((name, f"sha256 {files[name]['sha256'][:16]}... expected, got {result[0][:16]}..."))
            files[name]["stamp"] = None
        else:
            files[name]["stamp"] = result[1]
    if wrong:
        manifest["complete"] = False
    with suppress(OSError):  # a read-only place can be verified all the same; its stamps stay as they were
        write_manifest(directory, manifest)
    return wrong


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
