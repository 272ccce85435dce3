"""Compile caches of a node: what they depend on; packed into one archive, unpacked file by file elsewhere.

Kernels are named by what they were compiled from, so files of two nodes merge; each is replaced as a whole.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from launcher.node.answer import Refused, answer
from launcher.node.facts_gpu import gpu_facts
from launcher.node.install_wheels import run_tool
from launcher.node.list_packages import LIST_PACKAGES
from launcher.node.probe_root import ProbeRoot
from launcher.node.weights_prepare import make_directory
from launcher.node.weights_report import Report

# Below SGLANG_CACHE_DIR, which the plan sets to <paths.cache>/sglang.
CACHES = ("triton", "tilelang", ".cache/flashinfer")
# Held or half-written by a compiler at work.
SKIPPED_FOLDERS = ("tmp", "locks")
ARCHIVE_NAME = "kernels.tar"
BLOCK_BYTES = 1 << 20


def caches_facts(*, engine: str, cache: str) -> None:
    """Last line: {"done": {"depends_on", "num_files", "total_bytes", "free_bytes"}}."""
    root = _root(cache)
    with Report("look", 0):
        files = list(_files(root))
        depends_on = _depends_on(engine)
    make_directory(Path(cache).expanduser())
    disk = os.statvfs(Path(cache).expanduser())
    answer({"done": {"depends_on": depends_on, "num_files": len(files),
                     "total_bytes": sum(path.stat().st_size for path in files),
                     "free_bytes": disk.f_bavail * disk.f_frsize}})  # fmt: skip


def caches_pack(*, cache: str) -> None:
    """Last line: {"done": {"archive_id", "num_files", "digest"}}: an archive below <cache>/kernels."""
    root = _root(cache)
    files = list(_files(root))
    if not files:
        raise Refused(
            f"The caches must hold compiled kernels, got none ({root}).", "start the engine there once"
        )
    parent = root.parent / "kernels"
    make_directory(parent)
    temp = parent / f".{ARCHIVE_NAME}.{os.getpid()}"
    try:
        with Report("pack", sum(path.stat().st_size for path in files)) as report:
            with tarfile.open(temp, "w") as archive:
                for path in files:
                    archive.add(path, arcname=str(path.relative_to(root)), recursive=False, filter=_plain)
                    report.add(path.stat().st_size)
            entries = _read_entries(temp)
        digest = _digest(entries)
        directory = parent / digest[:12]
        directory.mkdir(exist_ok=True)
        temp.replace(directory / ARCHIVE_NAME)
    except OSError as error:  # a kernel that a running engine replaces, or a full disk
        raise Refused(
            f"The caches must stay as they are while packed, got: {error.strerror or error} ({root}).",
            "repeat it when the engine there has started, or is down",
        ) from error
    finally:
        temp.unlink(missing_ok=True)
    answer({"done": {"archive_id": digest[:12], "num_files": len(entries), "digest": digest}})


def caches_unpack(*, cache: str, archive_id: str) -> None:
    """Last line: {"done": {"num_files", "num_new", "digest"}}; the digest is of the files on disk."""
    root = _root(cache)
    folder = root.parent / "kernels" / archive_id
    archive_path = folder / ARCHIVE_NAME
    num_new = 0
    try:
        with tarfile.open(archive_path) as archive, Report("unpack", archive_path.stat().st_size) as report:
            for member in archive:
                target = _target(root, member)
                source = cast(BinaryIO, archive.extractfile(member))
                num_new += not target.is_file()
                _write(target, source, member)
                report.add(member.size)
        digest = _digest({name: _hash_file(root / name) for name in _read_entries(archive_path)})
    except (OSError, tarfile.TarError, EOFError) as error:
        raise Refused(
            f"The archive of kernels must unpack, got: {error} ({archive_path}).",
            f"make room: df -h {root.parent}; then repeat: what is there is whole",
        ) from error
    num_files = len(_read_entries(archive_path))
    shutil.rmtree(folder)
    answer({"done": {"num_files": num_files, "num_new": num_new, "digest": digest}})


def caches_forget(*, cache: str, archive_id: str) -> None:
    """On the source, when the others have it."""
    shutil.rmtree(_root(cache).parent / "kernels" / archive_id, ignore_errors=True)
    answer({"done": {}})


def _root(cache: str) -> Path:
    return Path(cache).expanduser().absolute() / "sglang"


def _depends_on(engine: str) -> dict[str, Any]:
    """Kernels of one node run on another when all of this is equal."""
    python = Path(engine).expanduser().absolute() / "bin/python"
    if not python.is_file():
        raise Refused(
            f"The engine must be on this node, got none ({python}).",
            "sparkctl install, or set paths.engine of this node to where it is",
        )
    packages = run_tool([str(python), "-I", "-c", LIST_PACKAGES], "list its packages")
    gpus = gpu_facts(ProbeRoot())["gpus"]
    return {
        "architecture": platform.machine(),
        "gpu": ", ".join(str(gpu["name"]) for gpu in gpus) or "none",
        "driver": ", ".join(sorted({str(gpu["driver_version"]) for gpu in gpus})) or "none",
        "engine": hashlib.sha256(packages.encode()).hexdigest()[:12],
    }


def _files(root: Path) -> Iterator[Path]:
    for name in CACHES:
        for here, folders, names in os.walk(root / name):
            folders[:] = sorted(item for item in folders if item not in SKIPPED_FOLDERS)
            for item in sorted(names):
                path = Path(here) / item
                if path.is_file() and not path.is_symlink() and path.suffix != ".lock":
                    yield path


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Whose file it was is no matter on another node; ninja compares times, so those stay."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _target(root: Path, member: tarfile.TarInfo) -> Path:
    """Raises Refused for anything but a plain file of a cache: an archive crosses a network."""
    path = PurePosixPath(member.name)
    is_inside = any(path.is_relative_to(name) for name in CACHES) and ".." not in path.parts
    target = root / path
    if not member.isreg() or not is_inside or not target.parent.resolve().is_relative_to(root.resolve()):
        raise Refused(
            f"An archive of kernels must hold plain files of {', '.join(CACHES)}, got {member.name!r:.80}."
        )
    return target


def _write(target: Path, source: BinaryIO, member: tarfile.TarInfo) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temp = target.with_name(f".{target.name}.sparkctl-partial")
    try:
        with temp.open("wb") as file:
            shutil.copyfileobj(source, file, BLOCK_BYTES)
            file.flush()
            os.fsync(file.fileno())
        temp.chmod(0o755 if member.mode & 0o100 else 0o644)
        os.utime(temp, (member.mtime, member.mtime))
        temp.replace(target)
    finally:
        temp.unlink(missing_ok=True)


def _read_entries(path: Path) -> dict[str, str]:
    """name -> sha256 of what the archive holds."""
    with tarfile.open(path) as archive:
        return {
            member.name: _hash(cast(BinaryIO, archive.extractfile(member)))
            for member in archive
            if member.isreg()
        }


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return _hash(file)


def _hash(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return digest.hexdigest()


def _digest(entries: dict[str, str]) -> str:
    text = "".join(f"{name} {sha256}\n" for name, sha256 in sorted(entries.items()))
    return hashlib.sha256(text.encode()).hexdigest()
