"""The complete list of a checkpoint's files with sizes and sha256; hashes what no stamp vouches for."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_hash import hash_files
from launcher.node.weights_manifest import (
    is_verified,
    new_manifest,
    place,
    read_manifest,
    stamp_of,
    write_manifest,
)
from launcher.node.weights_report import Report
from launcher.node.weights_scan import check, scan
from launcher.node.weights_subset import INDEX_NAME, subset


def weights_list(*, models: str, model_path: str, leave_out: list[str], is_checkpoint: bool = True) -> None:
    """For a push from this node. Last line: {"done": {"directory", "origin", "left_out", "whole", "files"}}.

    Only files that the manifest vouches for need no hashing. A file that changed since is refused.
    """
    directory = place(models, model_path)
    manifest = make_manifest(
        directory, origin={"directory": str(directory)}, expect_same=True, is_checkpoint=is_checkpoint
    )
    files = {
        name: {
            "size_bytes": entry["size_bytes"],
            "sha256": entry["sha256"],
            "source_stamp": entry["stamp"],
        }
        for name, entry in manifest["files"].items()
    }
    dropped, index = subset(directory, leave_out)
    whole = dict(manifest.get("whole", {}))
    if dropped:
        whole = {name: files[name]["sha256"] for name in (*dropped, INDEX_NAME)} | whole
        files = {name: entry for name, entry in files.items() if name not in dropped}
        sha256 = hashlib.sha256(index).hexdigest()
        files[INDEX_NAME] = {"size_bytes": len(index), "sha256": sha256, "source_stamp": None}
    left_out = sorted({*manifest["left_out"], *leave_out})
    answer(
        {
            "done": {
                "directory": str(directory),
                "origin": manifest["origin"],
                "left_out": left_out,
                "whole": whole,
                "files": files,
            }
        }
    )


def make_manifest(
    directory: Path, *, origin: dict[str, Any], expect_same: bool = False, is_checkpoint: bool = True
) -> dict[str, Any]:
    """Scan, check and hash; write and return the manifest.

    `expect_same`: what an earlier manifest lists must still be so, byte by byte.
    """
    found = scan(directory)
    if is_checkpoint:
        check(directory)
    known = read_manifest(directory) or new_manifest({}, origin=origin, left_out=[])
    missing = sorted(set(known["files"]) - set(found))
    if expect_same and missing:
        raise Refused(
            f"The manifest must list files that are there, got {len(missing)} missing, first {missing[0]} "
            f"({directory}).",
            "complete it: sparkctl weights fetch, or sparkctl weights push from a complete node",
        )
    files = {
        name: {"size_bytes": status.st_size, **known["files"][name]}
        for name, status in found.items()
        if name in known["files"] and is_verified(directory, name, known["files"][name])
    }
    to_hash = [name for name in found if name not in files]
    with Report("hash", sum(found[name].st_size for name in to_hash)) as report:
        hashed = hash_files({name: directory / name for name in to_hash}, report.add)
    for name, result in hashed.items():
        if isinstance(result, Refused):
            raise result
        sha256, stamp = result
        if expect_same and name in known["files"] and known["files"][name]["sha256"] != sha256:
            raise Refused(
                f"{name} must have sha256 {known['files'][name]['sha256'][:16]}... as when it was fetched, "
                f"got {sha256[:16]}... ({directory}).",
                f"if the new content is wanted: sparkctl weights fetch --from {directory}",
            )
        files[name] = {"size_bytes": found[name].st_size, "sha256": sha256, "stamp": stamp}
    _refuse_changes(directory, files)
    manifest = {**known, "files": files, "complete": True}
    if not expect_same:
        manifest["origin"] = origin
    write_manifest(directory, manifest)
    return manifest


def _refuse_changes(directory: Path, files: dict[str, Any]) -> None:
    """Hashing takes minutes: a file that was replaced meanwhile is seen here."""
    for name, entry in files.items():
        if stamp_of((directory / name).stat()) != entry["stamp"]:
            raise Refused(
                f"{name} must stay as it is while the checkpoint is hashed, got a change ({directory}).",
                "wait until whatever writes it has ended, then repeat",
            )
