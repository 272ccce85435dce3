"""Disks behind a node's paths, and the identity of the checkpoint. Read-only."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused
from launcher.node.facts_shape import shape_facts
from launcher.node.probe_root import ProbeRoot
from launcher.node.weights_manifest import is_verified, read_manifest

DF_COLUMNS = "target,fstype,size,avail,itotal,iavail"
LFS_START = b"version https://git-lfs"
SMALL_BYTES = 1024
INDEX_NAME = "model.safetensors.index.json"
IDENTITY_FILES = ("config.json", INDEX_NAME, "tokenizer.json", "tokenizer_config.json")
MAX_LISTED = 5
MAX_HASHED_BYTES = 64 << 20


def storage_facts(
    root: ProbeRoot, *, paths: dict[str, Any], home: str, model_path: str | None
) -> dict[str, Any]:
    """`paths` as in the topology; `~` is the home on this node."""
    expanded = {
        key: value.replace("~", home, 1) if value.startswith("~") else value for key, value in paths.items()
    }
    expanded = {**expanded, "home": home, "tmp": "/tmp"}
    return {
        "places": _places(root, expanded),
        "model": _model(root, model_path, expanded.get("models", home), home) if model_path else None,
        "read_ahead_kb": {
            name: root.number(f"/sys/block/{name}/queue/read_ahead_kb")
            for name in root.names("/sys/block")
            if name.startswith("nvme")
        },
    }


def _places(root: ProbeRoot, paths: dict[str, str]) -> list[dict[str, Any]]:
    """df is a process of its own: a dead NFS server holds it, not us."""
    existing = {key: _existing(root, path) for key, path in paths.items()}
    targets = sorted(set(existing.values()))
    said = root.tool("df", "-B1", "--output=" + DF_COLUMNS, *(str(root.path(target)) for target in targets))
    rows = [line.split() for line in said.stdout.splitlines()[1:]]
    by_target = dict(zip(targets, rows, strict=True)) if len(rows) == len(targets) else {}
    read_only = _read_only_mounts(root)
    found = []
    for key, path in paths.items():
        row = by_target.get(existing[key])
        place = {
            "key": key,
            "path": path,
            "exists": existing[key] == path,
            "problem": None if row else said.first_line,
        }
        if row:
            mount, kind, size, free, inodes, free_inodes = row[:6]
            place.update(
                mount=mount, file_system=kind, size_bytes=_int(size), free_bytes=_int(free),
                inodes=_int(inodes), free_inodes=_int(free_inodes),
                is_writable=mount not in read_only and os.access(root.path(existing[key]), os.W_OK | os.X_OK),
            )  # fmt: skip
        found.append(place)
    return found


def _existing(root: ProbeRoot, path: str) -> str:
    """The path, or the nearest directory above it that is there."""
    while path != "/" and not root.path(path).exists():
        path = posixpath.dirname(path) or "/"
    return path


def _int(text: str) -> int | None:
    return int(text) if text.isdigit() else None


def _read_only_mounts(root: ProbeRoot) -> set[str]:
    rows = [line.split() for line in (root.text("/proc/self/mounts") or "").splitlines()]
    return {row[1] for row in rows if len(row) > 3 and "ro" in row[3].split(",")}


def _model(root: ProbeRoot, model_path: str, models: str, home: str) -> dict[str, Any]:
    """Hashes of the small files, and what is known of the shards without reading them."""
    path = (
        model_path.replace("~", home, 1) if model_path.startswith("~") else posixpath.join(models, model_path)
    )
    names = root.names(path)
    hashes = {name: _sha256(root, posixpath.join(path, name)) for name in IDENTITY_FILES if name in names}
    manifest = _manifest(root.path(path))
    if whole_index := _whole_index(root.path(path), manifest):
        hashes[INDEX_NAME] = whole_index
    weights = [name for name in names if name.endswith(".safetensors")]
    return {
        "path": path,
        "hashes": hashes,
        "shards": _shards(root, path, weights, manifest),
        "left_out": manifest.get("left_out", []),
        "lfs_pointers": [name for name in weights if _is_pointer(root, posixpath.join(path, name))],
        "empty": [name for name in weights if _size(root, posixpath.join(path, name)) == 0],
        "incomplete": [name for name in _all_names(root, path) if name.endswith(".incomplete")][:MAX_LISTED],
        "weight_bytes": sum(_size(root, posixpath.join(path, name)) for name in weights),
        "wrong_total": _wrong_total(root, path, weights),
        "shape": shape_facts(root.path(path)) if weights else None,
    }


def _manifest(directory: Path) -> dict[str, Any]:
    try:
        return read_manifest(directory) or {}
    except Refused:  # damaged: it vouches for nothing; `sparkctl weights verify` says so
        return {}


def _whole_index(directory: Path, manifest: dict[str, Any]) -> str | None:
    """sha256 of the index that a push rewrote, because it left parts out. The index here is known to be that
    one as long as nobody changed it since."""
    entry = manifest.get("files", {}).get(INDEX_NAME)
    is_ours = entry is not None and is_verified(directory, INDEX_NAME, entry)
    return manifest.get("whole", {}).get(INDEX_NAME) if is_ours else None


def _shards(root: ProbeRoot, path: str, weights: list[str], manifest: dict[str, Any]) -> dict[str, Any]:
    """Per shard its size, None where a push left it out,
    and its sha256 where `sparkctl weights` took it of this very file."""
    whole = manifest.get("whole", {})
    shards = {
        name: {"size_bytes": None, "sha256": whole[name]} for name in whole if name.endswith(".safetensors")
    }
    for name in weights:
        entry = manifest.get("files", {}).get(name)
        is_hashed = entry is not None and is_verified(root.path(path), name, entry)
        shards[name] = {
            "size_bytes": _size(root, posixpath.join(path, name)),
            "sha256": entry["sha256"] if is_hashed else None,
        }
    return shards


def _all_names(root: ProbeRoot, path: str) -> list[str]:
    """Names here and in the download folder of huggingface_hub; links are not followed."""
    below = ".cache/huggingface/download"
    return [
        *root.names(path),
        *(posixpath.join(below, name) for name in root.names(posixpath.join(path, below))),
    ]


def _wrong_total(root: ProbeRoot, path: str, weights: list[str]) -> str | None:
    """The index says how many bytes of tensors there are;
    files hold them and their headers, so never fewer."""
    text = root.text(posixpath.join(path, INDEX_NAME))
    try:
        index = json.loads(text) if text else {}
        total, named = index.get("metadata", {}).get("total_size"), set(index.get("weight_map", {}).values())
    except (ValueError, AttributeError, TypeError):
        return f"{INDEX_NAME} is no index"
    held = sum(_size(root, posixpath.join(path, name)) for name in weights if name in named)
    if isinstance(total, int) and named and named <= set(weights) and held < total:
        return f"its shards hold {held} bytes, the index says {total}"
    return None


def _sha256(root: ProbeRoot, path: str) -> str | None:
    try:
        with root.path(path).open("rb") as file:
            return hashlib.sha256(file.read(MAX_HASHED_BYTES)).hexdigest()
    except OSError:
        return None


def _size(root: ProbeRoot, path: str) -> int:
    try:
        return root.path(path).stat().st_size
    except OSError:
        return 0


def _is_pointer(root: ProbeRoot, path: str) -> bool:
    if not 0 < _size(root, path) < SMALL_BYTES:
        return False
    try:
        return root.path(path).read_bytes().startswith(LFS_START)
    except OSError:
        return False
