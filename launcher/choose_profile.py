"""Pure: the values of one profile over a recipe's own, each with the place it was written."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from launcher.errors import ConfigError
from launcher.explain_problems import ProblemLine, config_error, nearest_origin, show_value
from launcher.yaml_tree import YamlTree, merge_trees

# What a profile may say: how the same model on the same nodes is served.
PROFILE_KEYS = ("extensions", "server", "environment", "limits")


def put_profile_over(tree: YamlTree, asked: str | None) -> YamlTree:
    """`asked`, or the recipe's own `profile`; the tree as it is when it has neither. Raises ConfigError for a
    profile that the recipe does not have, or that says what a profile may not."""
    profiles = tree.data.get("profiles", {})
    if not isinstance(profiles, Mapping):
        return tree  # the model says what is wrong with it
    chosen = tree.data.get("profile") if asked is None else asked
    if chosen is None:
        return tree
    if not isinstance(chosen, str) or chosen not in profiles:
        raise _unknown(tree, chosen, list(profiles), from_file=asked is None)
    over = tree.sub_tree(("profiles", chosen))
    if over is None:
        return tree
    wrong = [str(key) for key in over.data if key not in PROFILE_KEYS]
    if wrong:
        where = str(nearest_origin(tree, ("profiles", chosen, wrong[0])))
        message = (
            f"profiles.{chosen} must hold only {', '.join(PROFILE_KEYS)}, got {wrong[0]}: a profile "
            "serves the same model on the same nodes"
        )
        raise config_error(tree.file, [ProblemLine(message, where)])
    merged = merge_trees(tree, over)
    origins = dict(merged.origins)
    if asked is not None:
        origins.pop(("profile",), None)
    return YamlTree(file=tree.file, data={**merged.data, "profile": chosen}, origins=origins)


def _unknown(tree: YamlTree, chosen: object, known: list[str], *, from_file: bool) -> ConfigError:
    listed = ", ".join(known) or "none"
    name = tree.data.get("name", tree.file)
    message = f"profile must be one of recipe {name}'s ({listed}), got {show_value(chosen)}"
    if from_file:
        where = str(nearest_origin(tree, ("profile",)))
        return config_error(tree.file, [ProblemLine(message, where)])
    close = difflib.get_close_matches(str(chosen), known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"sparkctl recipe show {name}"
    return ConfigError(f"{message}.", hint=hint)
