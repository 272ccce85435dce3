"""One rank's speculation: what the hooks ask for each step of the running engine, and tell of its result.

Plans depend on nothing but the requests of the batch, in order, and the accepted counts of earlier steps,
which SGLang broadcasts from rank 0; `agreement` is a digest of all plans so far, for the ranks to compare.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sgl_ext.speculation.controller import ControllerSettings, SpeculationController, VerifyShape
from sgl_ext.speculation.conversation_memory import page_keys
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.metrics import SpeculationMetrics
from sgl_ext.speculation.request_option import SpecMode, SpecOption, read_spec_option
from sgl_ext.speculation.step_plan import VerifyPlan
from sgl_ext.speculation.untuned_policy import plan_asked_widths

# Requests that end while they wait in the queue again (aborted after a retraction) are not announced; beyond
# so many the one that was planned longest ago is let go.
MAX_LIVE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class _Live:
    option: SpecOption
    request: Any  # SGLang's Req: its tokens are read when it ends
    prompt_keys: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True)
class _Batch:
    """A batch mostly stays what it was: what its requests asked for, looked up once. is_decided: by the
    controller; asked: the plan where it is not."""

    ids: tuple[str, ...]
    options: list[SpecOption]
    is_decided: bool
    asked: VerifyPlan | None = None


@dataclass(slots=True, kw_only=True)
class RankStep:
    """A planned step. is_decided: by the controller, which must learn the result. The engine's are:
    verify_lens, rows of each request on the device (None where all verify the block); clock, its times; and
    window, SGLang's VerifyWindow: positions and slots of whole blocks."""

    plan: VerifyPlan
    is_decided: bool
    verify_lens: Any = None
    clock: Any = None
    window: Any = None

    @property
    def drafts(self) -> bool:
        return self.plan.draft.drafts


class RankSpeculation:
    """Calls come in the engine's order: plan, then observe for each plan (later plans may come first), and
    finish for each request that was planned."""

    def __init__(self, *, block: int, shape: VerifyShape, table: CostTable | None) -> None:
        self.block = block
        self.metrics = SpeculationMetrics(block)
        self._controller = None
        if table is not None:
            assert table.block == block, "the table is loaded for this engine's block"
            self._controller = SpeculationController(table, ControllerSettings(shape=shape))
        self._live: OrderedDict[str, _Live] = OrderedDict()
        self._digest = hashlib.blake2b(digest_size=8)
        self._batch: _Batch | None = None  # of the last step
        self.num_steps = 0

    @property
    def is_tuned(self) -> bool:
        return self._controller is not None

    @property
    def agreement(self) -> int:
        """63 bits of every plan so far."""
        return int.from_bytes(self._digest.digest(), "little") >> 1

    def read_option(self, request: Any) -> SpecOption:
        """Raises SpecOptionError for a wish that does not exist."""
        return read_spec_option(request.sampling_params.custom_params, block=self.block)

    def plan(self, requests: Sequence[Any]) -> RankStep:
        ids = tuple([request.rid for request in requests])
        batch = self._batch
        if batch is None or batch.ids != ids:
            batch = self._enter(ids, requests)
        controller = self._controller
        if controller is not None and batch.is_decided:
            plan = controller.plan_verify(controller.plan_draft(ids))
        else:
            plan = batch.asked or plan_asked_widths(ids, batch.options, self.block)
            batch.asked = plan
        self._digest.update(b"P" + bytes(plan.widths) + plan.draft.kind.encode())
        self.num_steps += 1
        return RankStep(plan=plan, is_decided=batch.is_decided)

    def _enter(self, ids: tuple[str, ...], requests: Sequence[Any]) -> _Batch:
        options = [self._option(request) for request in requests]
        is_decided = self._controller is not None and any(option.mode is SpecMode.AUTO for option in options)
        self._digest.update(b"I" + repr(ids).encode())
        self._batch = _Batch(ids=ids, options=options, is_decided=is_decided)
        return self._batch

    def observe(
        self, step: RankStep, accepted: Sequence[int], *, draft_s: float = 0.0, verify_s: float = 0.0
    ) -> None:
        """accepted: draft tokens by request of the plan."""
        if step.is_decided:
            assert self._controller is not None
            self._controller.observe(step.plan, accepted)
        self.metrics.observe(step.plan, accepted, draft_s=draft_s, verify_s=verify_s)

    def finish(self, request_id: str) -> None:
        """A request ended or was aborted; one that never reached a decode step is not known here."""
        self._batch = None
        live = self._live.pop(request_id, None)
        if live is None:
            return
        self.metrics.finish(request_id)
        if self._controller is not None:
            tokens = [*live.request.origin_input_ids, *live.request.output_ids]
            self._controller.finish(request_id, live.prompt_keys, page_keys(tokens))

    def _option(self, request: Any) -> SpecOption:
        live = self._live.get(request.rid)
        if live is None:
            live = self._admit(request)
        self._live.move_to_end(request.rid)
        return live.option

    def _admit(self, request: Any) -> _Live:
        while len(self._live) >= MAX_LIVE:
            self.finish(next(iter(self._live)))
        option = self.read_option(request)
        keys: tuple[bytes, ...] = ()
        if self._controller is not None:
            keys = page_keys(request.origin_input_ids)
            self._controller.admit(request.rid, option, keys)
        live = _Live(option=option, request=request, prompt_keys=keys)
        self._live[request.rid] = live
        self.metrics.admit(request.rid)
        return live
