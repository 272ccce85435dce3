"""Pure: what differs between two recipes, value by value, defaults written out."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.compose_recipe import resolved_values
from launcher.config_problem import dotted
from launcher.recipe import Recipe

ABSENT = "absent"


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """`key` as in `recipe show --resolved`; "absent" stands for a key that one of them has not."""

    key: str
    old: object
    new: object


def compare_recipes(old: Recipe, new: Recipe) -> tuple[FieldChange, ...]:
    """In the order of the keys in a recipe."""
    before, after = _values(old), _values(new)
    keys = [*before, *(key for key in after if key not in before)]
    return tuple(
        FieldChange(key=key, old=before.get(key, ABSENT), new=after.get(key, ABSENT))
        for key in keys
        if before.get(key, ABSENT) != after.get(key, ABSENT)
    )


def _values(recipe: Recipe) -> dict[str, object]:
    values = {dotted(item.key): item.value for item in resolved_values(recipe, {})}
    # An empty map is one value to show, and no difference from its own first key.
    return {key: value for key, value in values.items() if value != {}}
