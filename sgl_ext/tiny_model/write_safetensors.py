"""A safetensors file written as a stream: tables larger than memory pass through in pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from sgl_ext.tiny_model.draw_values import num_bytes
from sgl_ext.tiny_model.v41_tensors import TensorSpec


def shard_header(specs: Sequence[TensorSpec]) -> bytes:
    """Length prefix and JSON header, padded to 8 bytes as the format's own writer does."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + num_bytes(spec)
        entries[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def write_shard(
    path: Path, specs: Sequence[TensorSpec], draw: Callable[[TensorSpec], Iterable[bytes]]
) -> None:
    """Writes one shard under a temporary name and renames it when it is whole and on disk."""
    temporary = path.with_name(f".{path.name}.part")
    with temporary.open("wb") as file:
        file.write(shard_header(specs))
        for spec in specs:
            written = 0
            for piece in draw(spec):
                file.write(piece)
                written += len(piece)
            if written != num_bytes(spec):
                raise AssertionError(f"{spec.name}: drew {written} bytes, header says {num_bytes(spec)}")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
