"""Pure: put one nested map over another. Maps merge key by key; lists and scalars replace."""

from __future__ import annotations

from collections.abc import Mapping


def merge_maps(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, object]:
    """A new map: `base` with everything that `over` says; neither argument is changed."""
    merged = dict(base)
    for key, value in over.items():
        below = merged.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            merged[key] = merge_maps(below, value)
        else:
            merged[key] = value
    return merged
