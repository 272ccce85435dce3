"""Where each tensor of a safetensors file lies, read from its header alone."""

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

from engram.errors import CheckpointError

# The format's own limit; a larger length is garbage, often the text of a Git LFS pointer.
_MAX_HEADER_BYTES = 100_000_000
_LFS_PREFIX = b"version https://git-lfs"
_DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2,
    "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """offset_bytes counts from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    num_bytes: int


def read_safetensors_header(path: Path) -> dict[str, TensorEntry]:
    """All tensors by name. Raises CheckpointError for a pointer file, a torn file or overlapping tensors."""
    try:
        with path.open("rb") as file:
            file_bytes = os.fstat(file.fileno()).st_size
            start = file.read(8)
            if start == _LFS_PREFIX[:8]:
                raise _wrong("the shard", "a safetensors file", "a Git LFS pointer (a text stub)", path)
            header_bytes = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
                seen = f"{header_bytes} bytes in a file of {file_bytes}"
                raise _wrong("the safetensors header", "inside the file", seen, path)
            text = file.read(header_bytes)
    except OSError as error:
        raise _wrong("the shard", "readable", str(error.strerror), path) from error
    return parse_safetensors_header(
        text, data_offset_bytes=8 + header_bytes, file_bytes=file_bytes, path=path
    )


def parse_safetensors_header(
    text: bytes, *, data_offset_bytes: int, file_bytes: int, path: Path
) -> dict[str, TensorEntry]:
    """`path` names the file in errors."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong("the safetensors header", "JSON", str(error), path) from error
    if not isinstance(document, dict):
        raise _wrong("the safetensors header", "an object", type(document).__name__, path)
    entries = [
        _parse_entry(name, fields, data_offset_bytes, path)
        for name, fields in document.items()
        if name != "__metadata__"
    ]
    _check_ranges(entries, data_offset_bytes, file_bytes, path)
    return {entry.name: entry for entry in entries}


def _parse_entry(name: str, fields: object, data_offset_bytes: int, path: Path) -> TensorEntry:
    match fields:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if all(
            isinstance(size, int) and 0 <= size < 1 << 48 for size in shape
        ):
            pass
        case _:
            raise _wrong(f"tensor {name!r}", "dtype, shape and data_offsets", repr(fields)[:200], path)
    if not 0 <= start <= end:
        raise _wrong(f"data_offsets of {name!r}", "ascending", f"[{start}, {end}]", path)
    # Types this table lacks (packed FP4, FP6) belong to other tensors; only their range is of interest here.
    item_bytes = _DTYPE_BYTES.get(dtype)
    if item_bytes is not None and math.prod(shape) * item_bytes != end - start:
        expected = f"{math.prod(shape) * item_bytes} bytes for {dtype} {shape}"
        raise _wrong(f"tensor {name!r}", expected, f"{end - start} bytes", path)
    return TensorEntry(
        name=name,
        dtype=dtype,
        shape=tuple(shape),
        offset_bytes=data_offset_bytes + start,
        num_bytes=end - start,
    )


def _check_ranges(entries: list[TensorEntry], data_offset_bytes: int, file_bytes: int, path: Path) -> None:
    end, last = data_offset_bytes, ""
    for entry in sorted(entries, key=lambda e: (e.offset_bytes, e.num_bytes)):
        if entry.offset_bytes < end:
            expected = f"bytes of its own after {last!r}"
            raise _wrong(f"tensor {entry.name!r}", expected, "an overlap", path)
        end, last = entry.offset_bytes + entry.num_bytes, entry.name
    if end > file_bytes:
        raise _wrong("the shard", f"at least {end} bytes long", f"{file_bytes} bytes", path)


def _wrong(name: str, expected: str, seen: str, path: Path) -> CheckpointError:
    return CheckpointError(
        f"{name} must be {expected}, got {seen} ({path}).",
        hint="download this shard again, with its weights (hf download, or git lfs pull)",
    )
