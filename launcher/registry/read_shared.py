"""Bytes of a shared recipe -> checked recipe: strict YAML, no unknown key, the rules for sharing."""

from __future__ import annotations

from launcher.errors import ConfigError
from launcher.explain_problems import config_error
from launcher.parse_yaml import parse_yaml
from launcher.read_yaml import check_tree
from launcher.recipe import Recipe
from launcher.registry.errors import RegistryRefused
from launcher.registry.reference import Reference
from launcher.registry.registry_index import printable
from launcher.registry.share_rules import share_problems


def read_shared(content: bytes, reference: Reference) -> Recipe:
    """Raises RegistryRefused that names every problem with file, line and column."""
    file = str(reference)
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        seen = content[error.start]
        raise RegistryRefused(f"{file} must be UTF-8 text, got byte 0x{seen:02x} ({file}:{line}).") from error
    try:
        tree = parse_yaml(text, file)
        problems = share_problems(tree)
        if problems:
            raise config_error(file, problems)
        recipe = check_tree(tree, Recipe)
    except ConfigError as error:
        raise RegistryRefused(printable(error.message), hint=printable(error.hint)) from error
    if recipe.name != reference.name:
        raise RegistryRefused(f"{file} must be named {reference.name}, got {recipe.name} ({file}).")
    return recipe
