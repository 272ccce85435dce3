"""What is pushed: the recipe with what it extends written out, checked for sharing, and planned."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from launcher.compose_recipe import compose_recipe, read_recipe_tree
from launcher.doctor.plan_anyway import plan_anyway
from launcher.errors import ConfigError
from launcher.explain_problems import config_error
from launcher.find_recipe import find_recipe
from launcher.plan import LaunchPlan
from launcher.read_yaml import show_path
from launcher.recipe import Recipe
from launcher.registry.find_lock import lock_of
from launcher.registry.read_shared import read_shared
from launcher.registry.recipe_lock import read_lock, recipe_sha256
from launcher.registry.reference import Reference, is_recipe_name
from launcher.registry.share_rules import share_problems
from launcher.topology import local_topology
from launcher.yaml_tree import YamlTree

PLAN_ID = "20000101-000000-0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """`content` is the file as it will lie in the registry, `lock` that of its lock."""

    recipe: Recipe
    content: bytes
    lock: bytes | None


def prepare_push(name: str) -> Package:
    """Raises ConfigError that names, with its place, everything that stands against sharing."""
    path = find_recipe(name)
    recipe, _ = compose_recipe(path)
    if not is_recipe_name(recipe.name):
        raise ConfigError(f"a shared recipe's name must not end in .lock or a dot, got {recipe.name!r}.")
    tree = read_recipe_tree(path)
    alone = YamlTree(
        file=tree.file,
        data={key: value for key, value in tree.data.items() if key != "extends"},
        origins=tree.origins,
    )
    problems = share_problems(alone)
    if problems:
        raise config_error(show_path(path), problems)
    ordered = {key: alone.data[key] for key in Recipe.model_fields if key in alone.data}
    content = yaml.safe_dump(ordered, sort_keys=False, width=110, allow_unicode=True).encode()
    written = read_shared(content, Reference(registry="push", name=recipe.name))
    plan_alone(written)
    return Package(recipe=written, content=content, lock=_lock(name, recipe, written))


def plan_alone(recipe: Recipe) -> LaunchPlan:
    """A plan on stand-ins for nodes: whatever planning would refuse, it refuses before anybody pulls it."""
    topology = local_topology(recipe.parallelism.nodes)
    nodes = tuple(
        node.model_copy(update={"gpus": recipe.parallelism.gpus_per_node}) for node in topology.nodes
    )
    return plan_anyway(recipe, topology.model_copy(update={"nodes": nodes}), {}, run_id=PLAN_ID)[0]


def _lock(name: str, recipe: Recipe, written: Recipe) -> bytes | None:
    """Only a lock of these very values goes along."""
    path: Path = lock_of(name)
    if not path.is_file():
        return None
    lock, _ = read_lock(path)
    seen = recipe_sha256(written)
    if lock.recipe.sha256 != seen or recipe_sha256(recipe) != seen:
        raise ConfigError(
            f"{show_path(path)} must be of this recipe, sha256 {seen[:16]}..., it is of"
            f" {lock.recipe.sha256[:16]}....",
            hint=f"sparkctl recipe lock {name}, or remove the lock",
        )
    return path.read_bytes()
