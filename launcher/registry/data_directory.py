"""Where shared recipes live on this machine, and the lock that lets one command at a time change it.

<data>/registries/NAME/registry.json    url, branch, commit and the directory that holds it
<data>/registries/NAME/GENERATION/      repo.git (bare, shallow) and index.json, never changed once named
<data>/recipes/REGISTRY/NAME/           pulled versions: VERSION.yaml, VERSION.lock.yaml, versions.json
<data>/locks/NAME.lock.yaml             locks of shipped recipes
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from launcher.errors import ConfigError
from launcher.frozen_model import FrozenModel
from launcher.node.run_dir import write_file

M = TypeVar("M", bound=FrozenModel)


def data_directory() -> Path:
    """Raises ConfigError when XDG_DATA_HOME is no absolute path."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    if not Path(base).is_absolute():
        raise ConfigError(
            f"XDG_DATA_HOME must be an absolute path, got {base!r}.",
            hint="unset XDG_DATA_HOME, or correct it",
        )
    return Path(base) / "sparkctl"


@contextmanager
def data_lock() -> Iterator[None]:
    """Blocks until no other command changes registries or pulled recipes. The kernel lets go of it when this
    process ends, however it ends.
    """
    root = data_directory()
    try:
        root.mkdir(parents=True, exist_ok=True)
        file = (root / ".sharing.lock").open("a")
    except OSError as error:
        raise not_writable(root, error) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def save(path: Path, content: bytes) -> None:
    """Temp, fsync, rename, fsync of the directory."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, content, 0o644)
        sync_directory(path.parent)
    except OSError as error:
        raise not_writable(path.parent, error) from error


def sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def save_model(path: Path, model: FrozenModel) -> None:
    save(path, json.dumps(model.model_dump(mode="json"), indent=1).encode() + b"\n")


def load_model(path: Path, model: type[M], hint: str) -> M | None:
    """None when there is no such file. Raises ConfigError for a damaged one."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{path} must be a {model.__name__} that this version wrote, got something else.", hint=hint
        ) from error


def not_writable(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path} must be writable, got: {error.strerror}.",
        hint=f"make room or give access there, or set XDG_DATA_HOME; look at: df {path}; ls -ld {path}",
    )
