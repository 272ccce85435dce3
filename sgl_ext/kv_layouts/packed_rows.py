"""The KV formats of V4 and V4.1 in plain PyTorch, as SGLang's kv_layout.py names them. N rows, D = 512.

A page holds page_size data rows, then page_size rows of scales. V4: kernels/kv_slots.py. V41: 512 e4m3
values, a power of two for each 32. V41_FP4: 512 e2m1 values, two a byte, the first in the low half, an e4m3
scale for each 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sgl_ext.kernels import kv_slots

DIM = 512
_E4M3_MAX, _E2M1_MAX = 448.0, 6.0
_AMAX_FLOOR = 1e-4
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowFormat:
    """name: SGLang's KVLayout of the same bytes. group: values that share a scale. A page is padded to whole
    page_align bytes.
    """

    name: str
    data_bytes: int
    scale_bytes: int
    group: int
    page_align: int

    @property
    def bytes_per_token(self) -> int:
        return self.data_bytes + self.scale_bytes

    def page_bytes(self, page_size: int) -> int:
        return -(-page_size * self.bytes_per_token // self.page_align) * self.page_align


V4 = RowFormat(
    name="v4", data_bytes=kv_slots.DATA_BYTES, scale_bytes=kv_slots.SCALE_BYTES, group=64, page_align=576
)
V41 = RowFormat(name="v41", data_bytes=512, scale_bytes=16, group=32, page_align=512)
V41_FP4 = RowFormat(name="v41_fp4", data_bytes=256, scale_bytes=32, group=16, page_align=256)


def empty_cache(form: RowFormat, pages: int, page_size: int, device: torch.device) -> torch.Tensor:
    """uint8 [pages, bytes of a page]."""
    return torch.zeros((pages, form.page_bytes(page_size)), dtype=torch.uint8, device=device)


def view_tokens(cache: torch.Tensor, page_size: int, form: RowFormat) -> torch.Tensor:
    """uint8 [pages, page_size, 1, bytes of a token], as SGLang hands a pool to its attention."""
    pages, size = cache.shape[0], form.bytes_per_token
    return cache[:, : page_size * size].view(pages, page_size, 1, size)


def store_rows(
    cache: torch.Tensor, slots_N: torch.Tensor, rows_ND: torch.Tensor, page_size: int, form: RowFormat
) -> None:
    """Quantises rows into cache at slots."""
    if form is V4:
        kv_slots.store_rows(cache, slots_N, rows_ND, page_size)
        return
    tiles = rows_ND.float().unflatten(1, (-1, form.group))
    amax = tiles.abs().amax(-1).clamp_min(_AMAX_FLOOR)
    data, scales = (_encode_fp8 if form is V41 else _encode_fp4)(tiles, amax)
    flat = cache.view(-1)
    data_start, scale_start = _row_starts(cache, slots_N, page_size, form)
    flat[data_start[:, None] + torch.arange(form.data_bytes, device=cache.device)] = data
    flat[scale_start[:, None] + torch.arange(form.scale_bytes, device=cache.device)] = scales


def load_rows(cache: torch.Tensor, slots_N: torch.Tensor, page_size: int, form: RowFormat) -> torch.Tensor:
    """The bf16 rows [N, D] at slots."""
    if form is V4:
        return kv_slots.load_rows(cache, slots_N, page_size)
    flat = cache.view(-1)
    data_start, scale_start = _row_starts(cache, slots_N, page_size, form)
    data = flat[data_start[:, None] + torch.arange(form.data_bytes, device=cache.device)]
    scales = flat[scale_start[:, None] + torch.arange(form.scale_bytes, device=cache.device)]
    if form is V41:
        values, factors = data.view(torch.float8_e4m3fn).float(), _power_of_two(scales)
    else:
        codes = torch.stack([data & 15, data >> 4], dim=-1).flatten(1).long()
        table = torch.tensor((*_E2M1, *(-value for value in _E2M1)), device=cache.device)
        values, factors = table[codes], scales.view(torch.float8_e4m3fn).float()
    rows = values.unflatten(1, (-1, form.group)) * factors.unsqueeze(-1)
    return rows.flatten(1).to(torch.bfloat16)


def _encode_fp8(tiles: torch.Tensor, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    bits = (amax / _E4M3_MAX).contiguous().view(torch.int32)
    exponents = ((bits >> 23) & 0xFF) + ((bits & 0x7FFFFF) != 0).int()
    codes = (tiles / _power_of_two(exponents).unsqueeze(-1)).clamp(-_E4M3_MAX, _E4M3_MAX)
    return codes.flatten(1).to(torch.float8_e4m3fn).view(torch.uint8), exponents.to(torch.uint8)


def _encode_fp4(tiles: torch.Tensor, amax: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scales = (amax / _E2M1_MAX).to(torch.float8_e4m3fn)
    small = scales.float().clamp_min(2**-9).unsqueeze(-1)
    scaled = tiles / small
    codes = torch.bucketize(scaled.abs(), torch.tensor(_MIDDLES, device=tiles.device))
    codes = (codes + 8 * (scaled < 0)).flatten(1).to(torch.uint8)
    return codes[:, 0::2] | (codes[:, 1::2] << 4), scales.view(torch.uint8)


def _row_starts(
    cache: torch.Tensor, slots_N: torch.Tensor, page_size: int, form: RowFormat
) -> tuple[torch.Tensor, torch.Tensor]:
    page, place = slots_N.long() // page_size, slots_N.long() % page_size
    start = page * cache.shape[1]
    data_end = start + page_size * form.data_bytes
    return start + place * form.data_bytes, data_end + place * form.scale_bytes


def _power_of_two(biased_exponent: torch.Tensor) -> torch.Tensor:
    return (biased_exponent.int() << 23).view(torch.float32)
