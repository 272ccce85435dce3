"""Seeded tensor bytes: the same for a seed on every machine, and drawable in pieces of any table size.

All values come from raw 64-bit words of PCG64 (NumPy guarantees that stream, unlike its distributions)
through lookup tables. A tensor's stream depends on the seed, its name and the piece, not on the tensors
before it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sgl_ext.tiny_model.v41_tensors import Fill, TensorSpec

BYTES_PER_VALUE = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "F8_E8M0": 1, "I8": 1}
FP8_CODE_STD = 32.0  # e4m3 codes up to about 93, well inside 448 and above the denormals
_FP4_CODE_STD = math.sqrt(sum(v * v for v in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)) / 8)
_PIECE_VALUES = 1 << 22


def num_bytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * BYTES_PER_VALUE[spec.dtype]


def draw_tensor(spec: TensorSpec, *, seed: int) -> Iterator[bytes]:
    """The tensor's bytes, little-endian and row-major, in pieces of at most 16 MiB."""
    total = math.prod(spec.shape)
    for piece, start in enumerate(range(0, total, _PIECE_VALUES)):
        num = min(_PIECE_VALUES, total - start)
        yield _draw_piece(spec, _stream(seed, spec.name, piece), num)


def _draw_piece(spec: TensorSpec, stream: np.random.PCG64, num: int) -> bytes:
    if spec.fill is Fill.FP8_CODES:
        return _fp8_code_table()[_raw(stream, num)].tobytes()
    if spec.fill is Fill.FP4_PAIRS:
        return _raw(stream, num).tobytes()
    if spec.fill is Fill.SCALES:
        return _draw_scales(spec, _raw(stream, num)).tobytes()
    places = _raw(stream, 2 * num).view("<u2")
    values = np.float32(spec.mean) + np.float32(spec.std) * _normal_table()[places]
    return (values if spec.dtype == "F32" else round_to_bf16(values)).tobytes()


def _draw_scales(spec: TensorSpec, raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    packed_fp4 = ".experts." in spec.name
    exponent = round(math.log2(spec.std / (_FP4_CODE_STD if packed_fp4 else FP8_CODE_STD)))
    return (127 + exponent - (raw & 1)).astype(np.uint8)


def round_to_bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Nearest, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def _raw(stream: np.random.PCG64, num: int) -> NDArray[np.uint8]:
    words = np.asarray(stream.random_raw((num + 7) // 8), dtype="<u8")
    return words.view(np.uint8)[:num]


def _stream(seed: int, name: str, piece: int) -> np.random.PCG64:
    digest = hashlib.sha256(f"{seed}/{name}/{piece}".encode()).digest()
    return np.random.PCG64(np.frombuffer(digest, dtype="<u4").tolist())


@cache
def _normal_table() -> NDArray[np.float32]:
    """Standard normal quantiles for 16 random bits."""
    quantile = NormalDist().inv_cdf
    return np.array([quantile((idx + 0.5) / 65536) for idx in range(65536)], dtype="<f4")


@cache
def _fp8_code_table() -> NDArray[np.uint8]:
    """The e4m3 code of the normal quantile for 8 random bits."""
    quantile = NormalDist(sigma=FP8_CODE_STD).inv_cdf
    return np.array([encode_e4m3(quantile((idx + 0.5) / 256)) for idx in range(256)], dtype=np.uint8)


def encode_e4m3(value: float) -> int:
    """Nearest e4m3 code of a value within +-448."""
    sign = 0x80 if value < 0 else 0
    codes = range(0x7F)  # 0x7F is NaN
    return sign | min(codes, key=lambda code: (abs(decode_e4m3(code) - abs(value)), code & 1))


def decode_e4m3(code: int) -> float:
    exponent, mantissa = code >> 3 & 0xF, code & 7
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if code & 0x80 else size
