"""Whether packed files serve the Engram rows on a node, so that a push need not bring their shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from launcher.node.answer import answer
from launcher.node.facts_packed import engram_layers, missing_packed
from launcher.node.weights_manifest import place, read_manifest


def weights_engram_layers(*, models: str, model_path: str) -> None:
    """On the source, which has the model. Last line: {"done": {"layers": [1, 14]}}."""
    answer({"done": {"layers": engram_layers(place(models, model_path)) or []}})


def weights_packed(
    *, models: str, model_path: str, engram: str, path: str, ranks: list[int], tp: int, layers: list[int]
) -> None:
    """`path` is absolute, or below `engram`. Last line: {"done": {"needed_because": why the shards must come,
    or null}}. A checkpoint that is whole here stays whole.
    """
    folder = Path(engram).expanduser() / Path(path).expanduser()
    why: Any = missing_packed(folder, layers, ranks, tp) if layers else "the model has no Engram layers"
    why = why and f"{why} ({folder})"
    manifest = read_manifest(place(models, model_path))
    if why is None and manifest and manifest["complete"] and "engram" not in manifest["left_out"]:
        why = "they are there already"
    answer({"done": {"needed_because": why}})
