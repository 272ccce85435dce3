"""Speculation in the running engine of one rank: the plan that the hooks of a step carry out.

None until the scheduler is built (warm-up and graph capture run SGLang's own step), then one per process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from sgl_ext.errors import SpecRankError
from sgl_ext.speculation.rank_speculation import RankSpeculation, RankStep
from sgl_ext.speculation.step_clock import StepClock
from sgl_ext.speculation.verify_layouts import VerifyLayouts

# Ragged windows that are compared with SGLang's own before ours are used unseen (hooks/spec_window.py).
WINDOWS_TO_PROVE = 32
_STEP = "sparkctl_step"  # attribute of SGLang's result object: its step


class EngineSpeculation:
    """group: the ranks' CPU process group, or None for one rank; publish: brings /metrics up to date."""

    def __init__(self, rank: RankSpeculation, *, device: torch.device, group: Any, publisher: Any) -> None:
        self.rank = rank
        self._device = device
        self._group = group
        self._publisher = publisher
        self._step: RankStep | None = None
        self._clocks: list[StepClock] = []  # of steps that were read
        self.layouts = VerifyLayouts(device)
        self.windows_to_prove = WINDOWS_TO_PROVE

    @property
    def step(self) -> RankStep | None:
        """The step that is being launched; None outside of one."""
        return self._step

    def begin(self, requests: Sequence[Any]) -> None:
        step = self.rank.plan(requests)
        self._compare_ranks()
        if min(step.plan.widths) < self.rank.block:
            step.verify_lens = self.layouts.lens(step.plan.widths)
        step.clock = clock = self._clocks.pop() if self._clocks else StepClock(self._device)
        clock.mark()
        if not step.drafts:
            clock.skip_draft()
        self._step = step

    def end(self, result: Any) -> None:
        """result: SGLang's, of this step; observe() finds the step there once its counts are on the host."""
        step, self._step = self._step, None
        assert step is not None
        step.clock.mark()
        setattr(result, _STEP, step)

    def drop(self) -> None:
        self._step = None

    def observe(self, result: Any, accept_lens: Sequence[int]) -> None:
        step = getattr(result, _STEP, None)
        if step is None:
            return
        draft_s, verify_s = step.clock.seconds()
        step.clock.restart()
        self._clocks.append(step.clock)
        accepted = [length - 1 for length in accept_lens]
        self.rank.observe(step, accepted, draft_s=draft_s, verify_s=verify_s)
        if self._publisher is not None:
            self._publisher.publish()

    def _compare_ranks(self) -> None:
        """Before anything of the step is launched: a rank that verifies another number of rows would hang in
        the next collective, without a word."""
        if self._group is None:
            return
        digest = self.rank.agreement
        seen = torch.tensor([digest, -digest], dtype=torch.int64)
        torch.distributed.all_reduce(seen, torch.distributed.ReduceOp.MAX, group=self._group)
        if int(seen[0]) != -int(seen[1]):
            raise SpecRankError(
                f"Every rank must decide the same about step {self.rank.num_steps}, got different plans "
                f"(this rank: {digest:x}).",
                hint="send the logs of all ranks; until then start with SPARKCTL_SPEC unset",
            )


_running: EngineSpeculation | None = None


def set_speculation(speculation: EngineSpeculation | None) -> None:
    global _running
    _running = speculation


def get_speculation() -> EngineSpeculation | None:
    """None while the engine is built."""
    return _running


def current_step() -> RankStep | None:
    return None if _running is None else _running.step
