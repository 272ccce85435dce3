"""Which parts a push leaves out on which node: what is asked for, and Engram rows that packed files serve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from launcher.frozen_model import FrozenModel
from launcher.gather_facts import PackedProbe
from launcher.remote import Remote
from launcher.run_on_all import run_on_all
from launcher.topology import Node
from launcher.weights.choose_weights import Weights
from launcher.weights.follow import Tell, follow
from launcher.weights.push import values_of

ENGRAM = "engram"


class _Layers(FrozenModel):
    layers: list[int]


class _Packed(FrozenModel):
    needed_because: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOut:
    """Parts by node; `needed_because`: why a node gets Engram shards although the recipe packs its rows."""

    parts: dict[str, tuple[str, ...]]
    needed_because: dict[str, str]

    def groups(self) -> dict[tuple[str, ...], list[str]]:
        """Nodes that get the same files: one push each."""
        found: dict[tuple[str, ...], list[str]] = {}
        for node, parts in self.parts.items():
            found.setdefault(parts, []).append(node)
        return found


def choose_leave_out(
    weights: Weights,
    source: Node,
    targets: Sequence[Node],
    asked: tuple[str, ...],
    remotes: Mapping[str, Remote],
    tell: Tell,
) -> LeaveOut:
    """Asks the nodes whose rows the recipe packs, unless the answer is given: `asked` has it, or no node."""
    probes = {node.name: node for node in targets if node.name in weights.packed}
    if ENGRAM in asked or not probes:
        return LeaveOut(parts=dict.fromkeys((node.name for node in targets), asked), needed_because={})
    layers = follow(
        remotes[source.name], "weights_engram_layers", _Layers, tell,
        models=source.paths.models, model_path=weights.model_path,
    ).layers  # fmt: skip

    def one(remote: Remote) -> _Packed:
        return _ask(
            probes[remote.node], weights.packed[remote.node], weights.model_path, layers, remote, tell
        )

    answers = values_of(run_on_all([remotes[name] for name in probes], one), "tell its packed files")
    needed = {name: item.needed_because for name, item in answers.items() if item.needed_because}
    packed = set(answers) - set(needed)
    parts = {node.name: (*asked, ENGRAM) if node.name in packed else asked for node in targets}
    return LeaveOut(parts=parts, needed_because=needed)


def _ask(
    node: Node, probe: PackedProbe, model_path: str, layers: list[int], remote: Remote, tell: Tell
) -> _Packed:
    return follow(remote, "weights_packed", _Packed, tell, models=node.paths.models, model_path=model_path,
                  engram=node.paths.engram, layers=layers, **asdict(probe))  # fmt: skip
