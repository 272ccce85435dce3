"""The content of YAML files as plain values, with the place each of them was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.config_problem import KeyPath
from launcher.merge_maps import merge_maps


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a key stands: `key` is its path in that file, `raw` its value as typed (None for maps, lists)."""

    file: str
    line: int
    column: int
    key: KeyPath
    raw: str | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


# Key path in the result -> where it came from. A path without an entry is a default of the model.
Provenance = Mapping[KeyPath, Origin]


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlTree:
    """Maps, lists and scalars of one file, or of several merged. `origins` has one entry per key and item."""

    file: str
    data: Mapping[str, object]
    origins: Provenance

    def sub_tree(self, path: KeyPath) -> YamlTree | None:
        """The map at `path` as a tree of its own; None when there is no map."""
        value: object = self.data
        for part in path:
            value = step_into(value, part)
        if not isinstance(value, Mapping):
            return None
        size = len(path)
        origins = {key[size:]: origin for key, origin in self.origins.items() if key[:size] == path}
        return YamlTree(file=self.file, data=value, origins=origins)


def step_into(value: object, part: str | int) -> object:
    """Value under one key or index; None when there is none."""
    if isinstance(value, Mapping) and isinstance(part, str):
        return value.get(part)
    if isinstance(value, (list, tuple)) and isinstance(part, int) and part < len(value):
        return value[part]
    return None


def merge_trees(base: YamlTree, over: YamlTree) -> YamlTree:
    """`over` on top of `base`, as merge_maps does it; every value keeps its own origin."""
    replaced = set(_replaced_paths(base.data, over.data, ()))
    kept = {path: origin for path, origin in base.origins.items() if not _is_below(path, replaced)}
    return YamlTree(file=over.file, data=merge_maps(base.data, over.data), origins={**kept, **over.origins})


def _replaced_paths(base: Mapping[str, object], over: Mapping[str, object], at: KeyPath) -> list[KeyPath]:
    paths: list[KeyPath] = []
    for key, value in over.items():
        below = base.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            paths += _replaced_paths(below, value, (*at, key))
        else:
            paths.append((*at, key))
    return paths


def _is_below(path: KeyPath, tops: set[KeyPath]) -> bool:
    return any(path[:size] in tops for size in range(1, len(path) + 1))
