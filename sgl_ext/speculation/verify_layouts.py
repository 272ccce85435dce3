"""Ragged layouts of the widths that were verified before: nothing is built or copied for them a second time.

A layout is a few numbers of the batch's widths alone, so that a step of the same widths takes the tensors of
the last one. SGLang keeps its layouts of whole blocks in the same way; nothing writes into either.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from sgl_ext.speculation.to_device import to_device

# Equal widths of 16 batch sizes and the mixed ones of a busy server's last minutes; each is some 2 KiB.
MAX_LAYOUTS = 512


@dataclass(slots=True, kw_only=True)
class _Entry:
    """lens: rows of each request, int32 [B] on the device. layout: SGLang's, or None for widths beyond the
    captured graphs. kept: what else was made of it, by what it is."""

    lens: torch.Tensor
    layout: Any = None
    has_layout: bool = False
    kept: dict[Hashable, Any] = field(default_factory=dict)


class VerifyLayouts:
    """The least recently used go first."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._entries: OrderedDict[tuple[int, ...], _Entry] = OrderedDict()
        self._last: _Entry | None = None  # whose layout was handed out last

    def lens(self, widths: tuple[int, ...]) -> torch.Tensor:
        """int32 [B]: width + 1 rows of each request."""
        return self._entry(widths).lens

    def layout(self, widths: tuple[int, ...], build: Callable[[torch.Tensor], Any]) -> Any:
        """What build makes of lens(widths), built once."""
        entry = self._last = self._entry(widths)
        if not entry.has_layout:
            entry.layout = build(entry.lens)
            entry.has_layout = True
        return entry.layout

    def keep(self, layout: Any, key: Hashable, build: Callable[[], Any]) -> Any:
        """What build makes of the layout that was handed out last, built once; any other's is not kept."""
        entry = self._last
        if entry is None or entry.layout is not layout:
            return build()
        found = entry.kept.get(key)
        if found is None:
            found = entry.kept[key] = build()
        return found

    def _entry(self, widths: tuple[int, ...]) -> _Entry:
        entry = self._entries.get(widths)
        if entry is None:
            entry = self._entries[widths] = _Entry(
                lens=to_device([width + 1 for width in widths], torch.int32, self._device)
            )
            if len(self._entries) > MAX_LAYOUTS:
                self._entries.popitem(last=False)
        else:
            self._entries.move_to_end(widths)
        return entry
