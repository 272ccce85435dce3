"""Download a checkpoint to this node with huggingface_hub; a file gets its name with the hub's hash alone."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import threading
from pathlib import Path
from typing import IO, Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_adopt import listed
from launcher.node.weights_list import make_manifest
from launcher.node.weights_manifest import (
    is_safe_name,
    is_verified,
    new_manifest,
    partial_path,
    place,
    read_manifest,
    stamp_of,
    sync_directory,
    write_manifest,
)
from launcher.node.weights_prepare import directory_lock, make_directory
from launcher.node.weights_report import EVERY_S, Report

# Each thread is one connection; more than this gained nothing that was seen.
NUM_THREADS = 8


def weights_fetch(
    *, models: str, model_path: str, repo: str, revision: str | None, pythons: list[str]
) -> None:
    """The first of `pythons` that is there downloads. Last line: {"done": {...}}; complete or refused."""
    directory = place(models, model_path)
    make_directory(directory)
    with directory_lock(directory):
        child = _start(_choose(pythons))
        try:
            _tell(child, {"repo": repo, "revision": revision})
            said = _hear(child)
            files = _checked(said)
            origin = {"repo": repo, "revision": said["commit"]}
            manifest = _begin(directory, files, origin)
            _check_space(directory, files)
            _download(child, directory, files, manifest)
        finally:
            child.kill()
            child.wait()
        answer({"done": listed(make_manifest(directory, origin=origin), directory)})


def _choose(pythons: list[str]) -> str:
    expanded = [str(Path(python).expanduser()) for python in pythons]
    for python in expanded:
        if os.access(python, os.X_OK):
            return python
    raise Refused(
        f"A Python with huggingface_hub must be on the node that fetches, got none of {', '.join(expanded)}.",
        "sparkctl install; or: sparkctl weights fetch --python PATH; or --from DIR",
    )


def _start(python: str) -> subprocess.Popen[bytes]:
    source = pkgutil.get_data("launcher.node", "weights_hub.py")
    assert source is not None
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [python, "-I", "-c", source.decode()], stdin=pipe, stdout=pipe, env={**os.environ, **quiet}
    )


def _tell(child: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    stdin: IO[bytes] | None = child.stdin
    assert stdin is not None
    stdin.write(json.dumps(request).encode() + b"\n")
    stdin.flush()


def _hear(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise Refused(
            f"The download must end with a result, got exit status {child.wait()} alone.",
            "repeat the command: what is here is kept",
        )
    said = json.loads(line)
    if "error" in said:
        raise Refused(said["error"], said["hint"])
    return dict(said)


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    for name, entry in said["files"].items():
        if not is_safe_name(name) or type(entry["size_bytes"]) is not int:
            raise Refused(f"The hub must list plain names with sizes, got {name!r:.80}.")
    return dict(said["files"])


def _begin(directory: Path, files: dict[str, Any], origin: dict[str, Any]) -> dict[str, Any]:
    """The manifest of what is here already; another download's files lose their word."""
    known = (read_manifest(directory) or {"files": {}})["files"]
    kept = {
        name: entry
        for name, entry in known.items()
        if name in files and entry["sha256"] == files[name]["sha256"] and is_verified(directory, name, entry)
    }
    manifest = new_manifest(kept, origin=origin, left_out=[])
    write_manifest(directory, manifest)
    return manifest


def _check_space(directory: Path, files: dict[str, Any]) -> None:
    needed = sum(entry["size_bytes"] - _have(directory, name, entry) for name, entry in files.items())
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if needed > free:
        raise Refused(
            f"{directory} must have {needed} bytes free for the download, got {free}.",
            f"make room, or set paths.models of this node to a larger disk: df -h {directory}",
        )


def _download(
    child: subprocess.Popen[bytes], directory: Path, files: dict[str, Any], manifest: dict[str, Any]
) -> None:
    skip = list(manifest["files"])
    total = sum(entry["size_bytes"] for entry in files.values())
    with Report("fetch", total) as report, _Watch(directory, files, report):
        _tell(child, {"directory": str(directory), "skip": skip, "num_threads": NUM_THREADS})
        for _ in range(len(files) - len(skip)):
            said = _hear(child)
            name, path = said["fetched"], directory / said["fetched"]
            sync_directory(path.parent)
            status = path.stat()
            entry = {"size_bytes": status.st_size, "sha256": said["sha256"], "stamp": stamp_of(status)}
            manifest["files"][name] = entry
            write_manifest(directory, manifest)


class _Watch:
    """Tells the bytes on disk as they grow."""

    def __init__(self, directory: Path, files: dict[str, Any], report: Report) -> None:
        self._directory, self._files, self._report = directory, files, report
        self._told = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._tell()

    def _work(self) -> None:
        while not self._stop.wait(EVERY_S):
            self._tell()

    def _tell(self) -> None:
        now = sum(_have(self._directory, name, entry) for name, entry in self._files.items())
        self._report.add(now - self._told)
        self._told = now


def _have(directory: Path, name: str, entry: dict[str, Any]) -> int:
    """Bytes of a file that need not come again."""
    for path in (directory / name, partial_path(directory, name)):
        try:
            return min(path.stat().st_size, int(entry["size_bytes"]))
        except OSError:
            continue
    return 0
