"""The Engram planes of a checkpoint folder, by file and offset; nothing is loaded."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from engram.errors import CheckpointError
from engram.hash_layout import HashLayout, make_hash_layout
from engram.model_config import EngramConfig, read_engram_config
from engram.safetensors_header import TensorEntry, read_safetensors_header

SCALE_GROUP = 32  # weights that share one scale byte
_INDEX_NAME = "model.safetensors.index.json"
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """num_rows rows of row_bytes, dense, from offset_bytes of a file on."""

    path: Path
    offset_bytes: int
    row_bytes: int
    num_rows: int

    def row_offset_bytes(self, row: int) -> int:
        return self.offset_bytes + row * self.row_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlanes:
    """One layer's table: e4m3 weights and their e8m0 scales."""

    layer_id: int
    weight: Plane
    scale: Plane

    @property
    def num_rows(self) -> int:
        return self.weight.num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    directory: Path
    revision: str
    config: EngramConfig
    layout: HashLayout
    tables: tuple[TablePlanes, ...]

    def table(self, layer_id: int) -> TablePlanes:
        for table in self.tables:
            if table.layer_id == layer_id:
                return table
        known = ", ".join(str(table.layer_id) for table in self.tables)
        raise CheckpointError(
            f"layer must be one of {known} (engram_layer_ids), got {layer_id} ({self.directory}).",
            hint="leave --layers out to take all Engram layers",
        )


def open_checkpoint(directory: Path, *, revision: str | None = None) -> Checkpoint:
    """Reads config, index and the headers of the Engram shards; checks names, types, shapes and ranges."""
    if not directory.is_dir():
        raise CheckpointError(
            f"the checkpoint must be a folder, got no such folder ({directory}).",
            hint="point --checkpoint at the folder that holds config.json and the shards",
        )
    config = read_engram_config(directory)
    layout = make_hash_layout(config)
    shards = _Shards(directory)
    return Checkpoint(
        directory=directory,
        revision=_choose_revision(directory, revision),
        config=config,
        layout=layout,
        tables=tuple(_find_planes(shards, layout, layer_id) for layer_id in layout.layer_ids),
    )


def find_revision(directory: Path) -> str | None:
    """The commit that the download tool left in the path or in its metadata, or the seed of a tiny model."""
    real = directory.resolve()
    tiny = real / "tiny_model.json"
    if tiny.is_file():
        return f"tiny-{hashlib.sha256(tiny.read_bytes()).hexdigest()[:32]}"
    if real.parent.name == "snapshots" and _COMMIT.fullmatch(real.name):
        return real.name
    metadata = real / ".cache" / "huggingface" / "download" / "config.json.metadata"
    if metadata.is_file():
        first = metadata.read_text("utf-8", errors="replace").split("\n", 1)[0].strip()
        if _COMMIT.fullmatch(first):
            return first
    return None


def _choose_revision(directory: Path, given: str | None) -> str:
    found = find_revision(directory)
    if given is not None and found is not None and given != found:
        raise CheckpointError(
            f"--revision must be {found}, which the download recorded, got {given} ({directory}).",
            hint=f"pass --revision {found}, or point --checkpoint at the folder of the other revision",
        )
    revision = given if given is not None else found
    if revision is None:
        raise CheckpointError(
            f"the checkpoint's revision must be known, got no record of it ({directory}).",
            hint="pass --revision with the commit the checkpoint was downloaded at",
        )
    if not re.fullmatch(r"[0-9A-Za-z._-]{1,64}", revision):
        raise CheckpointError(
            f"--revision must be 1 to 64 letters, digits, '.', '_' or '-', got {revision!r} (command line).",
            hint="pass --revision with the commit the checkpoint was downloaded at",
        )
    return revision


class _Shards:
    """Finds tensors: by the index where there is one, else in any *.safetensors of the folder."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._headers: dict[Path, dict[str, TensorEntry]] = {}
        index = directory / _INDEX_NAME
        self._weight_map = _read_weight_map(index) if index.is_file() else None

    def find(self, name: str) -> tuple[Path, TensorEntry]:
        for path in self._candidates(name):
            entry = self._header(path).get(name)
            if entry is not None:
                return path, entry
        raise CheckpointError(
            f"tensor {name!r} must be in the checkpoint, got no such tensor ({self._directory}).",
            hint="download all shards of the model, those of the Engram tables too",
        )

    def _candidates(self, name: str) -> list[Path]:
        if self._weight_map is None:
            return sorted(self._directory.glob("*.safetensors"))
        shard = self._weight_map.get(name)
        if shard is None:
            return []
        path = self._directory / shard
        if not path.is_file():
            raise CheckpointError(
                f"shard {shard}, which holds {name!r}, must be in the checkpoint, got no such file ({path}).",
                hint=f"download it into {self._directory}: {shard}",
            )
        return [path]

    def _header(self, path: Path) -> dict[str, TensorEntry]:
        if path not in self._headers:
            self._headers[path] = read_safetensors_header(path)
        return self._headers[path]


def _read_weight_map(index: Path) -> dict[str, str]:
    hint = f"download {_INDEX_NAME} again"
    try:
        document = json.loads(index.read_bytes())
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the index must be readable JSON, got {error} ({index}).", hint=hint
        ) from error
    match document:
        case {"weight_map": dict(weight_map)} if all(
            isinstance(shard, str) and "/" not in shard for shard in weight_map.values()
        ):
            return {str(name): shard for name, shard in weight_map.items()}
    raise CheckpointError(
        f"the index must have a weight_map of tensor names to shard names, got none ({index}).", hint=hint
    )


def _find_planes(shards: _Shards, layout: HashLayout, layer_id: int) -> TablePlanes:
    prefix = f"layers.{layer_id}.engram.embed"
    num_rows = layout.num_rows(layer_id)
    return TablePlanes(
        layer_id=layer_id,
        weight=_find_plane(shards, f"{prefix}.weight", "F8_E4M3", (num_rows, layout.head_dim)),
        scale=_find_plane(shards, f"{prefix}.scale", "F8_E8M0", (num_rows, layout.head_dim // SCALE_GROUP)),
    )


def _find_plane(shards: _Shards, name: str, dtype: str, shape: tuple[int, int]) -> Plane:
    path, entry = shards.find(name)
    if (entry.dtype, entry.shape) != (dtype, shape):
        raise CheckpointError(
            f"tensor {name!r} must be {dtype} {list(shape)}, got {entry.dtype} {list(entry.shape)} ({path}).",
            hint="config.json and the shards must come from the same revision; download both again",
        )
    return Plane(path=path, offset_bytes=entry.offset_bytes, row_bytes=shape[1], num_rows=shape[0])
