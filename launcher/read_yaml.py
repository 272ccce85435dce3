"""YAML file -> checked model, or one ConfigError that names file, line, key path and the value seen."""

from __future__ import annotations

import stat
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from launcher.errors import ConfigError
from launcher.explain_problems import explain_validation
from launcher.parse_yaml import parse_yaml
from launcher.yaml_tree import Provenance, YamlTree

MAX_FILE_BYTES = 1 << 20

M = TypeVar("M", bound=BaseModel)


def read_model(
    path: Path, model: type[M], prepare: Callable[[YamlTree], YamlTree] | None = None
) -> tuple[M, Provenance]:
    """Read, optionally rewrite the tree, and check. Returns the model and where each key came from."""
    tree = read_tree(path)
    if prepare is not None:
        tree = prepare(tree)
    return check_tree(tree, model), tree.origins


def check_tree(tree: YamlTree, model: type[M]) -> M:
    """The tree as a model; every problem of the file in one ConfigError."""
    try:
        return model.model_validate(tree.data)
    except ValidationError as error:
        raise explain_validation(error, tree, model) from error


def read_tree(path: Path) -> YamlTree:
    """The file's values and their places, not yet checked against a model."""
    return parse_yaml(read_text(path), show_path(path))


def show_path(path: Path) -> str:
    """The path for people: relative when it lies below the current directory."""
    absolute, here = path.absolute(), Path.cwd()
    return str(absolute.relative_to(here)) if absolute.is_relative_to(here) else str(path)


def read_text(path: Path) -> str:
    shown = show_path(path)
    try:
        info = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise ConfigError(
            f"{shown} must be an existing YAML file, got none.", hint=_neighbours(path)
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shown} must be a readable YAML file, got: {error}.") from error
    if stat.S_ISDIR(info.st_mode):
        raise ConfigError(f"{shown} must be a YAML file, got a directory.", hint=_inside(path))
    if not stat.S_ISREG(info.st_mode):
        raise ConfigError(f"{shown} must be a regular file, got a device, pipe or socket.")
    if info.st_size > MAX_FILE_BYTES:
        raise ConfigError(f"{shown} must be at most {MAX_FILE_BYTES} bytes, got {info.st_size}.")
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{shown} must be readable, got: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        byte = error.object[error.start]
        raise ConfigError(
            f"{shown} must be UTF-8 text, got byte 0x{byte:02x} ({shown}:{line}).", hint="save it as UTF-8"
        ) from error


def _neighbours(path: Path) -> str:
    parent = path.parent
    while not parent.is_dir() and parent != parent.parent:
        parent = parent.parent
    return _inside(parent)


def _inside(directory: Path) -> str:
    try:
        names = sorted(entry.name for entry in directory.iterdir() if entry.suffix in (".yaml", ".yml"))
    except OSError:
        names = []
    listed = ", ".join(names[:20]) + (", ..." if len(names) > 20 else "")
    return f"{show_path(directory)} holds {listed or 'no YAML file'}"
