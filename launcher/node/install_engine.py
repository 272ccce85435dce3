"""An engine's environment on a node, from wheels that are there: built aside, checked, then switched to.

`paths.engine` is a link to `<engine>-<lock>`; the one before stays as `<engine>.previous`, for --rollback.
Nothing is downloaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused, answer
from launcher.node.install_extension import only_wheel
from launcher.node.install_wheels import (
    LOCK_NAME,
    by_hash,
    canonical,
    lock_summary,
    num_lacking,
    read_lock,
    run_tool,
    wheels_path,
)
from launcher.node.list_packages import LIST_PACKAGES
from launcher.node.run_dir import write_file
from launcher.node.weights_manifest import sync_directory
from launcher.node.weights_report import Report

MARKER = "sparkctl-installed.json"


def install_engine(
    *, engine: str, cache: str, lock_id: str, lock: str, python: str, extension: dict[str, Any] | None = None
) -> None:
    """`extension`: {"extension_id", "sha256"} of a wheel that is on this node already.

    Last line: {"done": {"directory", "was_there", "packages": {name: version}, "digest"}}.
    """
    packages = read_lock(lock)
    link = _link_path(engine)
    suffix = f"{lock_id}-{extension['extension_id']}" if extension else lock_id
    built = link.with_name(f"{link.name}-{suffix}")
    _refuse_directory(link)
    with _alone(link), Report("install", 0):
        was_there = (built / MARKER).is_file()
        if not was_there:
            _build(built, cache, lock_id, packages, python)
            if extension:
                _add_extension(
                    python, built, only_wheel(cache, extension["extension_id"], extension["sha256"])
                )
        seen = _installed(built)
        _compare(built, packages, seen)
        names = sorted({*packages, *(["sparkctl"] if extension else [])})
        if extension and "sparkctl" not in seen:
            raise Refused(
                f"The extension must be the package sparkctl, got another ({built}).", "--extension FILE"
            )
        if not was_there:
            write_file(built / MARKER, json.dumps({"lock": lock_id, "extension": extension}).encode(), 0o644)
        _switch(link, built)
    answer({"done": {"directory": str(built), "was_there": was_there, "digest": _digest(names, seen),
                     "packages": {name: seen[name][0] for name in names}}})  # fmt: skip


def install_rollback(*, engine: str) -> None:
    """Last line: {"done": {"directory", "left"}}. Doing it twice switches forth again."""
    link = _link_path(engine)
    previous = link.with_name(f"{link.name}.previous")
    _refuse_directory(link)
    if not previous.is_symlink() or not (target := previous.readlink()).is_dir():
        raise Refused(f"An earlier environment must be there, got none ({previous}).", "sparkctl install")
    left = str(link.readlink()) if link.is_symlink() else ""
    _switch(link, target)
    answer({"done": {"directory": str(target), "left": left}})


def _link_path(engine: str) -> Path:
    return Path(engine).expanduser().absolute()


def _refuse_directory(link: Path) -> None:
    if link.exists() and not link.is_symlink():
        raise Refused(
            f"paths.engine must be a link that sparkctl made, or nothing, got a directory ({link}).",
            f"keep it under another name: mv {link} {link}.mine; or set paths.engine of this node elsewhere",
        )


@contextmanager
def _alone(link: Path) -> Iterator[None]:
    """Two installs at once would take each other's unfinished environment for one that was cut off."""
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        file = link.with_name(f".{link.name}.lock").open("a")
    except OSError as error:
        raise Refused(
            f"{link.parent} must be writable, got: {error.strerror}.",
            "make it so, or set paths.engine of this node elsewhere",
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Refused(
                f"One install at a time must write {link}, got another that is at work.",
                "wait, and repeat it",
            ) from None
        yield


def _build(
    built: Path, cache: str, lock_id: str, packages: dict[str, tuple[str, list[str]]], python: str
) -> None:
    wheels = wheels_path(cache, lock_id)
    if num_lacking(packages, by_hash(wheels)):
        raise Refused(
            f"The wheels of the lock must be on this node, got some missing ({wheels}).", "repeat it"
        )
    if built.exists():  # without its marker: a build that was cut off
        shutil.rmtree(built)
    run_tool([python, "-m", "venv", "--without-pip", str(built)], "make an environment")
    options = ["--require-hashes", "--find-links", str(wheels), "-r", str(wheels / LOCK_NAME)]
    run_tool([*_pip_install(python, built), *options], "install the lock")


def _add_extension(python: str, built: Path, wheel: Path) -> None:
    run_tool([*_pip_install(python, built), str(wheel)], "install the extension")


def _pip_install(python: str, built: Path) -> list[str]:
    """The building Python's own pip, with which the first node downloads too: an environment needs none."""
    argv = [python, "-m", "pip", "--disable-pip-version-check", "--python", str(built / "bin/python")]
    return [*argv, "install", "--no-index", "--no-deps"]


def _installed(built: Path) -> dict[str, list[str]]:
    said = json.loads(run_tool([str(built / "bin/python"), "-I", "-c", LIST_PACKAGES], "list its packages"))
    return {canonical(name): value for name, value in said.items()}


def _compare(built: Path, packages: dict[str, tuple[str, list[str]]], seen: dict[str, list[str]]) -> None:
    for name, version in lock_summary(packages).items():
        got = seen.get(name, ["none"])[0]
        if got != version:
            raise Refused(
                f"{name} must be {version} as in the lock, got {got} ({built}).",
                f"build it anew: rm -r {built}; sparkctl install",
            )


def _digest(names: list[str], seen: dict[str, list[str]]) -> str:
    """Equal on two nodes when versions and installed files are."""
    return hashlib.sha256(json.dumps([[name, *seen[name]] for name in names]).encode()).hexdigest()


def _switch(link: Path, built: Path) -> None:
    """What the link led to becomes the previous one. Each link is replaced as a whole."""
    now = str(link.readlink()) if link.is_symlink() else None
    if now == str(built):
        return
    if now is not None:
        _replace_link(link.with_name(f"{link.name}.previous"), now)
    _replace_link(link, str(built))
    sync_directory(link.parent)


def _replace_link(link: Path, target: str) -> None:
    temp = link.with_name(f".{link.name}.{os.getpid()}")
    temp.unlink(missing_ok=True)
    temp.symlink_to(target)
    temp.replace(link)
