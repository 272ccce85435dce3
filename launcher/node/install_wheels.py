"""The wheels of a lock on one node: downloaded with pip or taken from a directory, each by its hash."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.weights_prepare import directory_lock, make_directory
from launcher.node.weights_report import Report

LOCK_NAME = "lock.txt"
_LINE = re.compile(
    r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?P<hashes>(\s+--hash=sha256:[0-9a-f]{64})+)$"
)


def wheels_path(cache: str, lock_id: str) -> Path:
    return Path(cache).expanduser().absolute() / "wheels" / lock_id


def read_lock(text: str) -> dict[str, tuple[str, list[str]]]:
    """Canonical name -> (version, sha256s). One requirement a line, `\\` continues it. Raises Refused."""
    found: dict[str, tuple[str, list[str]]] = {}
    joined = re.sub(r"\\\n\s*", " ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        line = line.split(" #")[0].strip()
        if not line or line.startswith("#"):
            continue
        parts = _LINE.match(line)
        if parts is None:
            raise Refused(
                f"Every line of a lock must be NAME==VERSION --hash=sha256:..., got {line!r:.80} "
                f"(line {number}).",
                "write it with: pip-compile --generate-hashes, or pip install --dry-run --report",
            )
        name = canonical(parts["name"])
        if name in found:
            raise Refused(f"A lock must name a package once, got {name} again (line {number}).")
        found[name] = (parts["version"], re.findall(r"sha256:([0-9a-f]{64})", parts["hashes"]))
    if not found:
        raise Refused("A lock must name packages, got none.")
    return found


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install_wheels(*, cache: str, lock_id: str, lock: str, python: str, source: str | None) -> None:
    """Last line: {"done": {"directory", "num_files", "total_bytes"}}. Only wheels of the lock stay."""
    packages = read_lock(lock)
    wanted = {sha256 for _, hashes in packages.values() for sha256 in hashes}
    directory = wheels_path(cache, lock_id)
    make_directory(directory)
    with directory_lock(directory), Report("wheels", 0):
        (directory / LOCK_NAME).write_text(lock)
        if source is not None:
            _link_from(Path(source).expanduser(), directory, wanted)
        have = by_hash(directory)
        if num_lacking(packages, have):
            if source is not None:
                raise _lacking(packages, have, source)
            _download(python, directory)
            have = by_hash(directory)
        for sha256, path in have.items():
            if sha256 not in wanted:
                path.unlink()
        if num_lacking(packages, have):
            raise _lacking(packages, have, "what pip downloaded")
    paths = [path for path in directory.iterdir() if path.suffix == ".whl"]
    answer({"done": {"directory": str(directory), "num_files": len(paths),
                     "total_bytes": sum(path.stat().st_size for path in paths)}})  # fmt: skip


def num_lacking(packages: dict[str, tuple[str, list[str]]], have: dict[str, Path]) -> int:
    return sum(not any(sha256 in have for sha256 in hashes) for _, hashes in packages.values())


def _lacking(packages: dict[str, tuple[str, list[str]]], have: dict[str, Path], source: str) -> Refused:
    names = [f"{name}=={version}" for name, (version, hashes) in packages.items()
             if not any(sha256 in have for sha256 in hashes)]  # fmt: skip
    return Refused(
        f"Every package of the lock must have its wheel, with its hash, in {source}, got {len(names)} "
        f"without, first {names[0]}.",
        "fetch them there: pip download --no-deps --require-hashes -r LOCK; or leave --wheels out",
    )


def _link_from(source: Path, directory: Path, wanted: set[str]) -> None:
    if not source.is_dir():
        raise Refused(f"--wheels must be a directory on the first node, got none ({source}).")
    for sha256, path in by_hash(source).items():
        target = directory / path.name
        if sha256 in wanted and not target.exists():
            try:
                os.link(path.resolve(), target)
            except OSError:  # another file system
                _copy(path, target)


def _copy(path: Path, target: Path) -> None:
    temp = target.with_name(f".{target.name}.sparkctl-partial")
    try:
        shutil.copyfile(path, temp)
        temp.replace(target)
    except OSError as error:
        temp.unlink(missing_ok=True)
        raise Refused(
            f"{target.parent} must take {path.name}, got: {error.strerror}.",
            f"make room: df -h {target.parent}",
        ) from error


def by_hash(directory: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(path for path in directory.glob("*.whl") if path.is_file()):
        digest = hashlib.sha256()
        try:
            with path.open("rb") as file:
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise Refused(
                f"A wheel must be readable, got: {error.strerror} ({path}).", f"look at it: ls -l {path}"
            ) from error
        found[digest.hexdigest()] = path
    return found


def _download(python: str, directory: Path) -> None:
    """pip resumes nothing, but keeps finished wheels in its cache: repeating is cheap."""
    lock = str(directory / LOCK_NAME)
    argv = [python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    run_tool([*argv, "--dest", str(directory), "-r", lock], "download the wheels")


def run_tool(argv: list[str], what: str) -> str:
    """stdout. Raises Refused with the tool's last words."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    except OSError as error:
        raise Refused(
            f"{argv[0]} must start, got: {error.strerror}.", "name a Python of the node: --python PATH"
        ) from error
    if done.returncode:
        lines = (done.stderr.strip() or done.stdout.strip() or "no words").splitlines()
        words = next((line for line in reversed(lines) if "ERROR" in line), lines[-1])
        said = done.stdout + done.stderr
        hint = (
            "on that node: sudo apt install python3-venv python3-pip"
            if "ensurepip" in said or "No module named pip" in said
            else "try it there by hand"
        )
        raise Refused(f"{argv[0]} must {what}, got exit status {done.returncode}: {words[:300]}", hint)
    return done.stdout


def lock_summary(packages: dict[str, tuple[str, list[str]]]) -> dict[str, Any]:
    return {name: version for name, (version, _) in packages.items()}
