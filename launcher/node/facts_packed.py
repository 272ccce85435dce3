"""Whether a node has the packed Engram files that its ranks read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

MAX_LISTED = 4


def packed_facts(
    *, path: str, ranks: list[int], tp: int, model: dict[str, Any] | None
) -> dict[str, str | None]:
    """{"path", "problem"}. By name only: the row store checks the content when the engine opens it."""
    folder = Path(path).expanduser()
    facts: dict[str, str | None] = {"path": str(folder), "problem": None}
    if not folder.is_dir():
        return facts | {"problem": "no such directory"}
    layers = engram_layers(Path(model["path"])) if model and not model["problem"] else None
    if layers is None:  # the model has a finding of its own
        return facts
    if not layers:
        problem = f"the model has no Engram layers ({model['path'] if model else ''}/config.json)"
        return facts | {"problem": problem}
    return facts | {"problem": missing_packed(folder, layers, ranks, tp)}


def missing_packed(folder: Path, layers: list[int], ranks: list[int], tp: int) -> str | None:
    """A file has its final name only when it is whole."""
    wanted = [f"layer-{layer:02d}.rank-{rank}of{tp}.engram" for layer in layers for rank in ranks]
    missing = [name for name in wanted if not (folder / name).is_file()]
    if not missing:
        return None
    listed = ", ".join(missing[:MAX_LISTED]) + (", ..." if len(missing) > MAX_LISTED else "")
    return f"{len(missing)} of {len(wanted)} packed files are missing: {listed}"


def engram_layers(model: Path) -> list[int] | None:
    try:
        config = json.loads((model / "config.json").read_text())
        return [int(layer) for layer in config.get("text_config", config).get("engram_layer_ids", [])]
    except (OSError, ValueError, TypeError, AttributeError):
        return None
