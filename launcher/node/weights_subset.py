"""A part of a checkpoint: without the shards that a rank never reads, and an index that says so.

"engram": shards that hold Engram rows alone, where packed files serve them. "draft": shards that hold draft
tensors alone. A shard that holds something else too stays whole, and so do its entries in the index.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from launcher.node.answer import Refused

INDEX_NAME = "model.safetensors.index.json"
# The same rules as launcher/fit/weight_classes.py, which needs a newer Python than nodes may have.
PARTS = {
    "engram": re.compile(r"(layers|mtp)\.\d+\.engram\.embed\.(weight|scale)$"),
    "draft": re.compile(r"mtp\."),
}


def subset(directory: Path, leave_out: list[str]) -> tuple[Any, ...]:
    """(names of shards left out, bytes of the new index). Nothing is written. Raises Refused."""
    unknown = [part for part in leave_out if part not in PARTS]
    if unknown:
        raise Refused(
            f"Parts to leave out must be of {', '.join(sorted(PARTS))}, got {unknown[0]!r}.",
            "--leave-out engram, --leave-out draft, or both",
        )
    if not leave_out:
        return set(), b""
    path = directory / INDEX_NAME
    try:
        index = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise Refused(
            f"A checkpoint in parts must have an index, got none ({path}).",
            "push all of it: without --leave-out",
        ) from error
    weight_map = index["weight_map"]
    kept = {shard for name, shard in weight_map.items() if not _is_left_out(name, leave_out)}
    dropped = set(weight_map.values()) - kept
    index["weight_map"] = {name: shard for name, shard in weight_map.items() if shard in kept}
    if isinstance(index.get("metadata"), dict) and "total_size" in index["metadata"]:
        index["metadata"]["total_size"] = sum(_data_bytes(directory / shard) for shard in kept)
    return dropped, json.dumps(index, indent=2, sort_keys=True).encode() + b"\n"


def _is_left_out(name: str, leave_out: list[str]) -> bool:
    return any(PARTS[part].match(name) for part in leave_out)


def _data_bytes(shard: Path) -> int:
    with shard.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        return file.seek(0, 2) - 8 - header_bytes
