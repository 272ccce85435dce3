"""Download a checkpoint to this node with huggingface_hub, then compare every hash with the hub's list."""

from __future__ import annotations

import hashlib
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
from launcher.node.weights_manifest import is_safe_name, place
from launcher.node.weights_prepare import directory_lock, make_directory
from launcher.node.weights_report import EVERY_S, Report

# huggingface_hub opens one connection a file; more than this gained nothing that was seen.
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
            _ask(
                child,
                {"repo": repo, "revision": revision, "directory": str(directory), "num_threads": NUM_THREADS},
            )
            said = _hear(child)
            files = _checked(said)
            total = sum(entry["size_bytes"] for entry in files.values())
            _check_space(directory, files, total)
            with Report("fetch", total) as report, _Watch(directory, files, report):
                _stdin(child).write(b"go\n")
                _stdin(child).flush()
                for _ in files:
                    _hear(child)
        finally:
            child.kill()
            child.wait()
        _refuse_small_changes(directory, files)
        manifest = make_manifest(directory, origin={"repo": repo, "revision": said["commit"]})
        _compare(directory, files, manifest["files"])
        answer({"done": listed(manifest, directory)})


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
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen([python, "-I", "-c", source.decode()], stdin=pipe, stdout=pipe, env=environment)


def _stdin(child: subprocess.Popen[bytes]) -> IO[bytes]:
    assert child.stdin is not None
    return child.stdin


def _ask(child: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    _stdin(child).write(json.dumps(request).encode() + b"\n")
    _stdin(child).flush()


def _hear(child: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise Refused(
            f"The download must end with a result, got exit status {child.wait()} alone.", "repeat it"
        )
    said = json.loads(line)
    if "error" in said:
        raise Refused(said["error"][:1].upper() + said["error"][1:], said["hint"])
    return dict(said)


def _checked(said: dict[str, Any]) -> dict[str, Any]:
    for name, entry in said["files"].items():
        if not is_safe_name(name) or type(entry["size_bytes"]) is not int:
            raise Refused(f"The hub must list plain names with sizes, got {name!r:.80}.")
    return dict(said["files"])


def _check_space(directory: Path, files: dict[str, Any], total: int) -> None:
    have = sum(min(_size(directory / name), entry["size_bytes"]) for name, entry in files.items())
    have += sum(_size(path) for path in _incomplete(directory))
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    if total - have > free:
        raise Refused(
            f"{directory} must have {total - have} bytes free for the download, got {free}.",
            f"make room, or set paths.models of this node to a larger disk: df -h {directory}",
        )


class _Watch:
    """Tells the bytes on disk as they grow: the library tells nobody."""

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
        now = sum(_size(self._directory / name) for name in self._files)
        now += sum(_size(path) for path in _incomplete(self._directory))
        self._report.add(now - self._told)
        self._told = now


def _incomplete(directory: Path) -> list[Path]:
    return list((directory / ".cache/huggingface/download").rglob("*.incomplete"))


def _size(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512 if path.name.endswith(".incomplete") else path.stat().st_size
    except OSError:
        return 0


def _refuse_small_changes(directory: Path, files: dict[str, Any]) -> None:
    """Files outside LFS have no sha256 on the hub, but git's own hash."""
    for name, entry in files.items():
        if entry["git_sha1"]:
            data = (directory / name).read_bytes()
            seen = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
            if seen != entry["git_sha1"]:
                raise _differs(directory, name, entry["git_sha1"], seen)


def _compare(directory: Path, files: dict[str, Any], seen: dict[str, Any]) -> None:
    for name, entry in files.items():
        if entry["sha256"] and seen[name]["sha256"] != entry["sha256"]:
            raise _differs(directory, name, entry["sha256"], seen[name]["sha256"])


def _differs(directory: Path, name: str, expected: str, seen: str) -> Refused:
    return Refused(
        f"{name} must have hash {expected[:16]}... as on the hub, got {seen[:16]}... ({directory / name}).",
        f"fetch it again: rm {directory / name}; sparkctl weights fetch",
    )
