"""Is the checkpoint whole on every node, and the same one on all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from launcher.errors import PreflightRefused, SparkctlError
from launcher.remote import Remote
from launcher.run_on_all import Result, run_on_all
from launcher.topology import Node
from launcher.weights.file_list import Dropped, Verified
from launcher.weights.follow import Tell, follow

INDEX_NAME = "model.safetensors.index.json"
State = Literal["complete", "partial", "different", "absent", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWeights:
    """One node's checkpoint. `reasons` say why it is not complete."""

    node: str
    state: State
    have_bytes: int
    total_bytes: int
    left_out: tuple[str, ...]
    reasons: tuple[str, ...]
    hint: str = ""


def verify(
    nodes: Sequence[Node], remotes: Mapping[str, Remote], model_path: str, tell: Tell, *, quick: bool
) -> list[NodeWeights]:
    """Every node's state, in the order of `nodes`. An error of a node is its state; never raises for one."""
    models = {node.name: node.paths.models for node in nodes}

    def one(remote: Remote) -> Verified:
        return follow(
            remote,
            "weights_verify",
            Verified,
            tell,
            models=models[remote.node],
            model_path=model_path,
            quick=quick,
        )

    return judge(run_on_all([remotes[node.name] for node in nodes], one))


def judge(results: Mapping[str, Result[Verified]]) -> list[NodeWeights]:
    """Pure. A node differs when its list has another hash for a file than most nodes' lists (the first
    node's, when no hash is more common).
    """
    lists = {node: result.value for node, result in results.items() if result.value is not None}
    agreed = _agreed(lists.values())
    return [
        _state(node, lists[node], agreed) if node in lists else _failed(node, result.error)
        for node, result in results.items()
    ]


def _key(name: str, item: Verified) -> tuple[str, ...]:
    """Files with one key must be equal; the index of a subset is rewritten, the same for the same parts."""
    return (name, *item.left_out) if name == INDEX_NAME else (name,)


def _agreed(lists: Iterable[Verified]) -> dict[tuple[str, ...], str]:
    votes: dict[tuple[str, ...], Counter[str]] = {}
    for item in lists:
        for name, sha256 in item.files.items():
            votes.setdefault(_key(name, item), Counter())[sha256] += 1
    return {key: counter.most_common(1)[0][0] for key, counter in votes.items()}


def _state(node: str, item: Verified, agreed: Mapping[tuple[str, ...], str]) -> NodeWeights:
    wrong = [f"{name}: {why}" for name, why in item.wrong]
    for name, sha256 in item.files.items():
        most = agreed[_key(name, item)]
        if most != sha256:
            wrong.append(f"{name}: sha256 {most[:16]}... on the other nodes, got {sha256[:16]}...")
    missing = [f"{name}: missing" for name in item.missing]
    state: State = "complete"
    if wrong:
        state = "different"
    elif missing or not item.complete:
        state = "partial"
    return NodeWeights(
        node=node,
        state=state,
        have_bytes=item.have_bytes,
        total_bytes=item.total_bytes,
        left_out=item.left_out,
        reasons=(*wrong, *missing),
        hint="" if state == "complete" else "sparkctl weights push --from NODE, a complete one",
    )


def _failed(node: str, error: SparkctlError | None) -> NodeWeights:
    assert error is not None
    # Any other refusal (a damaged list, files that were never hashed) says nothing about what is there.
    is_absent = isinstance(error, PreflightRefused) and bool(error.detail.get("absent"))
    return NodeWeights(
        node=node,
        state="absent" if is_absent else "unknown",
        have_bytes=0,
        total_bytes=0,
        left_out=(),
        reasons=(error.message,),
        hint=error.hint,
    )


def drop_cache(
    nodes: Sequence[Node], remotes: Mapping[str, Remote], model_path: str, tell: Tell
) -> dict[str, Result[Dropped]]:
    models = {node.name: node.paths.models for node in nodes}

    def one(remote: Remote) -> Dropped:
        return follow(
            remote, "weights_drop_cache", Dropped, tell, models=models[remote.node], model_path=model_path
        )

    return run_on_all([remotes[node.name] for node in nodes], one)
