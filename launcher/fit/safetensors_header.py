"""Header of a safetensors file: names, types and places of its tensors. Reads two ranges and no weight."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from launcher.errors import PreflightRefused

# The format's own limit.
MAX_HEADER_BYTES = 100_000_000
# No tensor has more, and the product of more or larger numbers would be too long to print.
MAX_DIMENSIONS, MAX_COUNT = 64, 1 << 63
_LFS_PREFIX = b"version https://git-lfs"

DTYPE_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def read_header(path: Path) -> tuple[Tensor, ...]:
    """Every tensor in file order. Raises PreflightRefused unless the tensors cover the file exactly, once."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            start = file.read(8)
            if start == _LFS_PREFIX[:8]:
                raise _wrong(path, "a safetensors file", "a Git LFS pointer (a text stub)", hint=_LFS_HINT)
            length = int.from_bytes(start, "little")
            if len(start) < 8 or not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
                seen = (
                    f"a header of {length} bytes in a file of {size}" if len(start) == 8 else f"{size} bytes"
                )
                raise _wrong(path, "a safetensors file", seen)
            text = file.read(length)
    except OSError as error:
        raise _wrong(path, "a readable file", error.strerror or str(error)) from error
    return _parse(path, text, data_bytes=size - 8 - length)


def _parse(path: Path, text: bytes, *, data_bytes: int) -> tuple[Tensor, ...]:
    try:
        header = json.loads(text, object_pairs_hook=_no_doubles)
    except (ValueError, RecursionError) as error:
        raise _wrong(path, "a safetensors file", f"a header that is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _wrong(path, "a safetensors file", "a header that is no JSON object")
    header.pop("__metadata__", None)
    placed = sorted(
        (_read_entry(path, name, entry) for name, entry in header.items()), key=lambda item: item[0]
    )
    end = 0
    for begin, stop, tensor in placed:
        if begin < end:
            raise _wrong(path, "tensors that do not overlap", f"{tensor.name} at byte {begin}, before {end}")
        if begin > end:
            raise _wrong(path, "tensors without gaps", f"{tensor.name} at byte {begin}, after {end}")
        if stop > data_bytes:
            raise _wrong(
                path,
                f"tensors inside the file's {data_bytes} bytes of data",
                f"{tensor.name} up to byte {stop}: the file is cut off or wrong",
            )
        end = stop
    if end != data_bytes:
        raise _wrong(path, f"{end} bytes of data, as its header says", f"{data_bytes}")
    return tuple(tensor for _, _, tensor in placed)


def _read_entry(path: Path, name: str, entry: object) -> tuple[int, int, Tensor]:
    if not isinstance(entry, dict):
        raise _wrong(path, f"an object for {name}", repr(entry)[:60])
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise _wrong(path, f"a known dtype for {name}", repr(dtype)[:60])
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _wrong(path, f"a shape and two offsets for {name}", f"{shape!r:.60}, {offsets!r:.60}")
    num_bytes = offsets[1] - offsets[0]
    needed = math.prod(shape) * DTYPE_BITS[dtype] // 8
    if num_bytes != needed:
        raise _wrong(path, f"{needed} bytes for {name} ({dtype} {shape})", f"{num_bytes}")
    tensor = Tensor(name=name, dtype=dtype, shape=tuple(shape), num_bytes=num_bytes)
    return offsets[0], offsets[1], tensor


def _are_counts(value: object) -> TypeGuard[list[int]]:
    if not isinstance(value, list) or len(value) > MAX_DIMENSIONS:
        return False
    return all(type(item) is int and 0 <= item < MAX_COUNT for item in value)


def _no_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a doubled key")
    return result


_LFS_HINT = "the weights were never fetched: git lfs pull there, or sparkctl weights fetch"
_HINT = "fetch that file again and compare its sha256: sparkctl weights verify"


def _wrong(path: Path, expected: str, seen: str, *, hint: str = _HINT) -> PreflightRefused:
    return PreflightRefused(f"The shard must have {expected}, got {seen} ({path}).", hint=hint)
