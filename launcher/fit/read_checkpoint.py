"""A checkpoint directory -> its tensors, from the index and the shards' headers. No weight is read."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath

from launcher.errors import ConfigError, PreflightRefused
from launcher.fit.safetensors_header import Tensor, read_header

# The one model whose tensors have size rules here (weight_classes.py).
MODEL_TYPE = "deepseek_v41"
INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
# The published index has 7.5 MB for 96,085 tensors.
MAX_JSON_BYTES = 64 << 20
_FETCH_HINT = "fetch that file again: sparkctl weights fetch"


def read_checkpoint(directory: Path) -> tuple[Tensor, ...]:
    """Every tensor that the index names. Raises PreflightRefused where index and shards do not agree."""
    index = directory / INDEX_NAME
    if not index.is_file() and (directory / SINGLE_NAME).is_file():
        return read_header(directory / SINGLE_NAME)
    weight_map = _read_index(index)
    shards = sorted(set(weight_map.values()))
    missing = [name for name in shards if not (directory / name).is_file()]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise PreflightRefused(
            f"The index must name shards that are there, got {len(missing)} of {len(shards)} missing: "
            f"{', '.join(missing[:3])}{more} ({index}).",
            hint="the download is not complete: sparkctl weights fetch",
        )
    found: dict[str, Tensor] = {}
    for shard in shards:
        for tensor in read_header(directory / shard):
            if weight_map.get(tensor.name) == shard:
                found[tensor.name] = tensor
    absent = [name for name in weight_map if name not in found]
    if absent:
        raise PreflightRefused(
            f"The index must name tensors that its shards hold, got {len(absent)} that are not there, first "
            f"{absent[0]} in {weight_map[absent[0]]} ({index}).",
            hint="index and shards are of different downloads: sparkctl weights verify",
        )
    return tuple(found.values())


def _read_index(path: Path) -> dict[str, str]:
    document = read_json_object(path)
    weight_map = document.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ConfigError(
            f"weight_map must be a map of tensor names to shards, got {weight_map!r:.60} ({path}).",
            hint=_FETCH_HINT,
        )
    for name, shard in weight_map.items():
        if (
            not isinstance(shard, str)
            or PurePosixPath(shard).name != shard
            or not shard.endswith(".safetensors")
        ):
            raise ConfigError(
                f"weight_map must name .safetensors files of its own directory, got {shard!r:.80} for "
                f"{name} ({path}).",
                hint=_FETCH_HINT,
            )
    return weight_map


def read_json_object(path: Path) -> dict[str, object]:
    """Raises ConfigError when the file is absent, too large, an LFS pointer, or no JSON object."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except FileNotFoundError as error:
        raise ConfigError(
            f"The checkpoint must have {path.name}, got none ({path.parent}).",
            hint="name the directory of a complete checkpoint",
        ) from error
    except OSError as error:
        raise ConfigError(f"{path.name} must be readable, got: {error.strerror} ({path}).") from error
    if len(text) > MAX_JSON_BYTES:
        raise ConfigError(
            f"{path.name} must have at most {MAX_JSON_BYTES} bytes, got more ({path}).", hint=_FETCH_HINT
        )
    if text.startswith(b"version https://git-lfs"):
        raise ConfigError(
            f"{path.name} must be JSON, got a Git LFS pointer (a text stub) ({path}).",
            hint="the files were never fetched: git lfs pull there, or sparkctl weights fetch",
        )
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path.name} must be JSON, got: {error} ({path}).", hint=_FETCH_HINT) from error
    if not isinstance(document, dict):
        raise ConfigError(
            f"{path.name} must be a JSON object, got {type(document).__name__} ({path}).", hint=_FETCH_HINT
        )
    return document
