"""A ragged verify's rows as a selection of the whole blocks that SGLang has laid out for the step already.

SGLang finds each row's request, place and slot anew in every step, in some twenty launches. Which of the
window's rows they are depends on the widths alone, so it is written down once for each layout; a step then
takes them out of its window, and whole blocks are the window itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sgl_ext.speculation.to_device import to_device


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRows:
    """index: int64 [T] of each row in the window [B * stride], 0 for padding; live: int64 [T], 0 for padding
    and else 1, None without padding; columns: index with -1 for padding. All None: the window itself."""

    index: torch.Tensor | None
    live: torch.Tensor | None
    columns: torch.Tensor | None

    def take(self, window: torch.Tensor) -> torch.Tensor:
        """[T] of a window [B, stride] or [B * stride], zeros in the padding."""
        flat = window.reshape(-1)
        if self.index is None:
            return flat
        rows = flat.index_select(0, self.index)
        return rows if self.live is None else rows.mul_(self.live)


def list_rows(lens: Sequence[int], stride: int, num_rows: int, device: torch.device) -> VerifyRows:
    """lens: rows of each request, at most stride; num_rows: of the graph, padding included.

    Example: lens 2, 1, stride 6, 4 rows -> index 0, 1, 6, 0; the last row is padding.
    """
    if all(length == stride for length in lens) and num_rows == len(lens) * stride:
        return VerifyRows(index=None, live=None, columns=None)
    columns = [idx * stride + place for idx, length in enumerate(lens) for place in range(length)]
    padding = num_rows - len(columns)
    packed = [columns + [-1] * padding, columns + [0] * padding, [1] * len(columns) + [0] * padding]
    moved = to_device(packed, torch.int64, device)
    return VerifyRows(index=moved[1], live=moved[2] if padding else None, columns=moved[0])
