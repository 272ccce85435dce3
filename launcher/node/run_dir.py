"""A run's directory on a node: `<state>/runs/<run_id>/`, mode 0700.

node.json         what to run: argv, environment, secrets (0600; removed when the run ended)
node.pyz          the supervisor's code
engine.yaml       secret engine options such as the API key (0600; removed when the run ended)
engine.log        output of the engine, secrets masked
supervisor.log    output of the supervisor itself
state.json        the supervisor's view: pids, phase, ranks, how it ended (replaced atomically)
tmp/              temporary files of the engine, reached through a short link (removed when the run ended)
reports/          what the plugin found on each rank (SPARKCTL_REPORT_DIR)
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any


def runs_root(state_path: str) -> Path:
    return Path(state_path).expanduser() / "runs"


def write_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` atomically: a reader sees the old or the new content, also after a power cut."""
    temp = path.with_name(f".{path.name}.{os.getpid()}")
    fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        temp.replace(path)
    except OSError:  # a full disk, most likely: the half-written file must not keep it full
        temp.unlink()
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None when there is no such file. A damaged file raises ValueError."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold an object, got {type(value).__name__}")
    return value


def read_state(run_dir: Path) -> dict[str, Any] | None:
    return read_json(run_dir / "state.json")


def write_state(run_dir: Path, state: dict[str, Any]) -> None:
    write_file(run_dir / "state.json", json.dumps(state, indent=1).encode())


def make_temp_link(run_dir: Path) -> str:
    """A short path to the run's tmp/: the engine makes sockets there, and their paths end at 107 bytes."""
    while True:
        link = f"/tmp/sparkctl-{os.urandom(4).hex()}"
        try:
            Path(link).symlink_to(run_dir / "tmp")
            return link
        except FileExistsError:
            continue


def remove_what_only_a_living_run_needs(run_dir: Path) -> None:
    """Secrets, temporary files, and the link to them."""
    for name in ("engine.yaml", "node.json"):
        (run_dir / name).unlink(missing_ok=True)
    shutil.rmtree(run_dir / "tmp", ignore_errors=True)
    for link in Path("/tmp").glob("sparkctl-*"):
        if link.is_symlink() and link.readlink() == run_dir / "tmp":
            link.unlink()
