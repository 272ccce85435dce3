"""Topology file -> checked topology, with the origin of every value, inherited ones included."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import ConfigError
from launcher.explain_problems import ProblemLine, config_error
from launcher.find_recipe import is_path, shipped_topologies
from launcher.read_yaml import read_model
from launcher.topology import Topology
from launcher.yaml_tree import Origin, Provenance, YamlTree, merge_trees

# What tells one node from another cannot be shared.
_NEVER_SHARED = (("name",), ("fabric", "address"))


def find_topology(name: str) -> Path:
    """A path, or the name of a shipped example -> file. The file is not opened here."""
    if is_path(name):
        return Path(name).expanduser()
    examples = shipped_topologies()
    if name in examples:
        return examples[name]
    raise ConfigError(
        f"topology must be a file or the name of an example, got {name!r}.",
        hint=f"examples: {', '.join(examples)}; a file needs a slash or .yaml: ./{name}.yaml",
    )


def read_topology(path: Path) -> tuple[Topology, Provenance]:
    """Raises ConfigError with file and line of everything that is wrong."""
    return read_model(path, Topology, prepare=inherit_defaults)


def inherit_defaults(tree: YamlTree) -> YamlTree:
    """The same tree with `defaults` merged into each node; inherited values keep their place in the file."""
    defaults = tree.sub_tree(("defaults",))
    if defaults is None:
        return tree
    shared = [tree.origins[("defaults", *key)] for key in _NEVER_SHARED if ("defaults", *key) in tree.origins]
    if shared:
        raise config_error(tree.file, [_not_shared(origin) for origin in shared])
    nodes = tree.data.get("nodes")
    data: dict[str, object] = {key: value for key, value in tree.data.items() if key != "defaults"}
    origins: dict[tuple[str | int, ...], Origin] = {
        key: origin for key, origin in tree.origins.items() if key[:1] != ("defaults",)
    }
    if isinstance(nodes, list):
        merged: list[object] = list(nodes)
        for index in range(len(nodes)):
            node = tree.sub_tree(("nodes", index))
            if node is None:
                continue
            both = merge_trees(defaults, node)
            merged[index] = both.data
            origins |= {("nodes", index, *key): origin for key, origin in both.origins.items()}
        data["nodes"] = merged
    return YamlTree(file=tree.file, data=data, origins=origins)


def _not_shared(origin: Origin) -> ProblemLine:
    name = ".".join(str(part) for part in origin.key[1:])
    return ProblemLine(
        f"defaults must not hold {name}, which differs from node to node, got {origin.raw!r}",
        str(origin),
        f"set {name} in each entry of nodes",
    )
