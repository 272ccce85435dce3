"""Which recipe and which topology a command means."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.compose_recipe import load_recipe
from launcher.errors import UsageError
from launcher.plan import LockPlan
from launcher.read_topology import read_topology
from launcher.recipe import Recipe
from launcher.topology import Topology, local_topology

DEFAULT_RECIPE = "local-v41"
MAX_LOCAL_NODES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """`how` says in words what was chosen and why, for the first line of output. `is_embedded`: the nodes are
    stand-ins on this machine. `values`: the recipe before --port and --no-api-key, which change no figure.
    """

    recipe: Recipe
    topology: Topology
    how: str
    is_embedded: bool = False
    lock: LockPlan | None = None
    values: Recipe | None = None


def default_topology_path() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "sparkctl" / "topology.yaml"


def choose_inputs(
    *,
    recipe: str | None,
    topology: str | None,
    nodes: int | None,
    port: int | None,
    profile: str | None = None,
) -> Inputs:
    """Without recipe and topology: the embedded default, N nodes on this machine.

    A recipe alone takes the user's own topology file, but one for the CPU engine takes this machine. A
    topology alone is refused, because nothing would say what to serve on it.
    """
    if topology is not None and recipe is None:
        raise UsageError(
            "a recipe must be named for a topology",
            hint=f"sparkctl up --recipe NAME --topology {topology}; sparkctl recipe list",
        )
    if profile is not None and recipe is None:
        raise UsageError("--profile must come with --recipe", hint="sparkctl recipe list")
    chosen = None if recipe is None else load_recipe(recipe, profile=profile)[0]
    lock = _lock_of(recipe, chosen)
    if chosen is None or (chosen.engine.runtime == "cpu" and topology is None):
        return replace(_embedded(chosen, nodes, port), lock=lock)
    path = Path(topology) if topology else default_topology_path()
    if topology is None and not path.is_file():
        raise UsageError(
            f"recipe {chosen.name} must have a topology, and there is no {path}",
            hint="describe your nodes once: sparkctl topology init --nodes spark-1,spark-2,spark-3",
        )
    read, _ = read_topology(path)
    read = first_nodes(read, nodes or chosen.parallelism.nodes, path)
    return Inputs(
        recipe=with_port(chosen, port),
        topology=read,
        how=f"recipe {chosen.name} on topology {path}",
        lock=lock,
        values=chosen,
    )


def _lock_of(name: str | None, recipe: Recipe | None) -> LockPlan | None:
    """Before an option of the command line changes the recipe. A lock is of the whole file, every profile."""
    if name is None or recipe is None:
        return None
    from launcher.registry.find_lock import locked_plan

    return locked_plan(name, recipe, load_recipe(name)[0])


def _embedded(chosen: Recipe | None, nodes: int | None, port: int | None) -> Inputs:
    """A recipe for the CPU engine, or the default one: as many stand-ins for nodes as asked for."""
    recipe = chosen or load_recipe(DEFAULT_RECIPE)[0]
    count = nodes or recipe.parallelism.nodes
    if not 1 <= count <= MAX_LOCAL_NODES:
        raise UsageError(
            f"--nodes must be 1 to {MAX_LOCAL_NODES} for the embedded default, got {count}",
            hint="sparkctl up --nodes 3",
        )
    recipe = with_nodes(recipe, count)
    how = f"the embedded default: {count} node(s) on this machine, real SGLang on CPU (recipe {recipe.name})"
    topology = on_this_engine(local_topology(count))
    return Inputs(recipe=with_port(recipe, port), topology=topology, how=how, is_embedded=True, values=recipe)


def with_nodes(recipe: Recipe, count: int) -> Recipe:
    """The same recipe over another number of nodes, a rank each; packed tables are those of that split."""
    parallel, engram = recipe.parallelism, recipe.extensions.engram
    if count == parallel.nodes:
        return recipe
    split = f"/tp{parallel.tp}"
    packed = engram.packed_path if engram.residence == "nvme" else None
    if parallel.tp != parallel.nodes or (packed is not None and not packed.endswith(split)):
        raise UsageError(
            f"--nodes must be {parallel.nodes} for recipe {recipe.name}, got {count}: only a recipe with one"
            f" rank a node, and packed tables in a folder named tp{parallel.tp}, runs on another number",
            hint="write a recipe with extends and its own parallelism (docs/recipes.md)",
        )
    changes: dict[str, object] = {
        "parallelism": parallel.model_copy(update={"nodes": count, "tp": count, "ep": 1})
    }
    if packed is not None:
        moved = engram.model_copy(update={"packed_path": f"{packed.removesuffix(split)}/tp{count}"})
        changes["extensions"] = recipe.extensions.model_copy(update={"engram": moved})
    return recipe.model_copy(update=changes)


def on_this_engine(topology: Topology) -> Topology:
    """The embedded nodes run the engine that is installed beside this launcher, and share its data."""
    own = {
        "engine": sys.prefix,
        "models": "~/.local/share/sparkctl/models",
        "engram": "~/.local/share/sparkctl/engram",
    }
    nodes = tuple(
        node.model_copy(update={"paths": node.paths.model_copy(update=own)}) for node in topology.nodes
    )
    return topology.model_copy(update={"nodes": nodes})


def first_nodes(topology: Topology, count: int, path: Path) -> Topology:
    """A recipe for fewer nodes takes the first ones of the file, in its order."""
    if len(topology.nodes) < count:
        raise UsageError(
            f"{count} nodes must be in {path}, got {len(topology.nodes)}",
            hint=f"sparkctl topology show {path}",
        )
    return topology.model_copy(update={"nodes": topology.nodes[:count]})


def with_port(recipe: Recipe, port: int | None) -> Recipe:
    if port is None:
        return recipe
    return recipe.model_copy(update={"server": recipe.server.model_copy(update={"port": port})})
