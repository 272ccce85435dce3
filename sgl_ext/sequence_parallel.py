"""Prefill with the rows between two sublayers split over the ranks (sequence parallelism).

The residual streams of mHC are [T, 4, h] on every rank, and mixing and norms are the same work on each. Here
a rank keeps T / R rows of them: a sublayer's input is gathered from all ranks, its partial output is summed
by a reduce-scatter. That moves what the all-reduce moved, and the work on the streams is 1 / R.

T tokens, R ranks. Rank r has rows [r * share, (r + 1) * share), share = ceil(T / R).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from sgl_ext.errors import SettingError

MODE_VARIABLE = "SPARKCTL_SEQUENCE_PARALLEL"
FROM_VARIABLE = "SPARKCTL_SEQUENCE_PARALLEL_FROM"
_MODES = ("off", "prefill", "prefill-exact")
# Below, the launches and latency of more collectives outweigh the work saved. Reported for four Sparks; on
# two H200 chunks of 4096 were slower still. Recipes set it: parallelism.sequence_parallel_from.
_FROM_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceParallel:
    """exact: the sum over ranks is the all-reduce of `off`, of which a rank keeps its rows: the same bits as
    without, for the collective's full price. Otherwise a reduce-scatter, whose order of adding may differ.
    """

    exact: bool
    from_tokens: int


class RankGroup(Protocol):
    """The collectives of SGLang's tensor-parallel group that this needs."""

    world_size: int
    rank_in_group: int

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor: ...

    def reduce_scatter_tensor(self, output: torch.Tensor, input: torch.Tensor) -> object: ...

    def all_gather_into_tensor(self, output: torch.Tensor, input: torch.Tensor) -> object: ...


def read_sequence_parallel(environment: Mapping[str, str], num_ranks: int) -> SequenceParallel | None:
    """None for off. Raises SettingError on a value that cannot be meant."""
    mode = environment.get(MODE_VARIABLE, "off")
    if mode not in _MODES:
        raise SettingError(
            f"{MODE_VARIABLE} must be one of {', '.join(_MODES)}, got {mode!r} (environment).",
            hint=f"unset {MODE_VARIABLE}",
        )
    text = environment.get(FROM_VARIABLE, str(_FROM_TOKENS))
    lowest = num_ranks * num_ranks  # every rank has a row
    if not text.isdigit() or int(text) < lowest:
        raise SettingError(
            f"{FROM_VARIABLE} must be a number of tokens from {lowest} on, got {text!r} (environment).",
            hint=f"unset {FROM_VARIABLE}",
        )
    if mode == "off":
        return None
    if num_ranks == 1:
        raise SettingError(
            f"{MODE_VARIABLE} must be off with one rank, got {mode!r} (environment).",
            hint="set parallelism.sequence_parallel: off",
        )
    return SequenceParallel(exact=mode == "prefill-exact", from_tokens=int(text))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShare:
    """This rank's rows of T, and the collectives on them."""

    num_tokens: int
    group: RankGroup
    exact: bool

    @property
    def share(self) -> int:
        return -(-self.num_tokens // self.group.world_size)

    @property
    def _bounds(self) -> tuple[int, int]:
        start = min(self.group.rank_in_group * self.share, self.num_tokens)
        return start, min(start + self.share, self.num_tokens)

    def keep(self, rows: torch.Tensor) -> torch.Tensor:
        """[T, ...] -> this rank's rows, a copy: the whole can be freed."""
        start, end = self._bounds
        return rows[start:end].clone()

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """Every rank's rows -> [T, ...]. Blocks on a CPU; in stream order on a GPU."""
        padded = self._pad(own, self.share)
        whole = padded.new_empty((self.share * self.group.world_size, *padded.shape[1:]))
        self.group.all_gather_into_tensor(whole, padded)
        return whole[: self.num_tokens]

    def add_up(self, partial: torch.Tensor) -> torch.Tensor:
        """Each rank's [T, ...] part of a sum -> the sum's rows of this rank."""
        start, end = self._bounds
        if self.exact:
            return self.group.all_reduce(partial)[start:end].clone()
        padded = self._pad(partial, self.share * self.group.world_size)
        own = padded.new_empty((self.share, *padded.shape[1:]))
        self.group.reduce_scatter_tensor(own, padded)
        return own[: end - start]

    @staticmethod
    def _pad(rows: torch.Tensor, length: int) -> torch.Tensor:
        missing = length - rows.shape[0]
        if missing == 0:
            return rows.contiguous()
        return torch.cat([rows, rows.new_zeros((missing, *rows.shape[1:]))])


class SharedState:
    """mHC's state with its rows spread over the ranks; stands where SGLang's HcState does between two layers.

    SGLang's model loop reads the whole residual at Engram layers, at layers that the draft captures, and at
    the end: those reads gather. Two layers in a row do not.
    """

    input = stats = None  # as of whole()

    def __init__(self, own: Any, rows: RowShare, make_whole: Callable[..., Any]) -> None:
        self.own, self.rows = own, rows
        self._make_whole, self._whole = make_whole, None

    def follow(self, own: Any) -> SharedState:
        """The state after a sublayer, on the same rows."""
        return SharedState(own, self.rows, self._make_whole)

    def whole(self) -> Any:
        """A plain HcState with all rows, without `input` and `stats`: the next combine makes them again."""
        if self._whole is None:
            pre = None if self.own.pre is None else self.rows.gather(self.own.pre)
            self._whole = self._make_whole(self.rows.gather(self.own.residual), pre)
        return self._whole

    @property
    def residual(self) -> torch.Tensor:
        residual: torch.Tensor = self.whole().residual
        return residual

    @property
    def pre(self) -> torch.Tensor | None:
        pre: torch.Tensor | None = self.whole().pre
        return pre

    def materialized(self, config: object) -> Any:
        return self.whole().materialized(config)

    def with_residual(self, residual: torch.Tensor) -> Any:
        return self.whole().with_residual(residual)

    def take_rows(self, rows: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        return self.whole().take_rows(rows)

    def release(self) -> None:
        self.own = self._whole = None


def share_rows(state: Any, num_tokens: int, group: RankGroup, setting: SequenceParallel) -> SharedState:
    """A layer's incoming state on this rank's rows; already there from the second layer on."""
    rows = RowShare(num_tokens=num_tokens, group=group, exact=setting.exact)
    if isinstance(state, SharedState):
        assert state.rows == rows, "a chunk keeps its rows through all layers"
        return state
    shared = SharedState(state.take_rows(rows.keep), rows, type(state))
    _say_once(num_tokens, shared.own.residual.shape[0])
    return shared


@functools.cache
def _said() -> list[int]:
    return []


def _say_once(num_tokens: int, num_rows: int) -> None:
    """The one trace that a split happened: outputs are the same without."""
    if not _said():
        _said().append(num_rows)
        print(
            f"sgl_ext: a prefill of {num_tokens} tokens keeps {num_rows} rows on this rank", file=sys.stderr
        )
