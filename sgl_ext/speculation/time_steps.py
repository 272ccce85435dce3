"""Times steps of a running engine from outside: its replies, streamed, say when each step was over.

A client's clock sees what a user waits for: GPU, host and scheduling. Widths are asked for with
`custom_params: {"spec": ..}`, so a cost table is measured on the engine that will use it.
"""

from __future__ import annotations

import itertools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sgl_ext.errors import CostTableError
from sgl_ext.speculation.measure_plan import DRAFT, Timing

# Parts of a reply may arrive late and then two at once. Beside steps as short as that delay, a sample is the
# mean of several; a long step is a sample by itself.
_SHORT_NS = 15_000_000
_STEPS_A_SAMPLE = 4
_SPARE_STEPS = 24  # a step's part may be merged with the next one's, and requests of a batch start apart
_LIMIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """url: of the head's HTTP server. prompts: token ids, one list a request, as many as the largest batch.
    api_key: as a client has it, or None."""

    url: str
    prompts: Sequence[Sequence[int]]
    api_key: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        key = {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}
        return {"Content-Type": "application/json", **key}


_numbers = itertools.count()


def time_steps(engine: Engine, timing: Timing) -> list[int]:
    """Nanoseconds a step, num_samples times or a few more. Blocks until they are taken; the requests are
    aborted then. Raises CostTableError where the engine ends or refuses the requests."""
    prefix = f"sparkctl-tune-{time.time_ns()}-{next(_numbers)}"
    ids = [f"{prefix}-{idx}" for idx in range(timing.batch)]
    steps = timing.num_warmup + timing.num_samples * _STEPS_A_SAMPLE + _SPARE_STEPS
    prompts = [list(prompt) for prompt in engine.prompts[: timing.batch]]
    body = {
        "input_ids": prompts,
        "rid": ids,
        "stream": True,
        "sampling_params": {
            "temperature": 0,
            "ignore_eos": True,
            "max_new_tokens": steps * (max(0, timing.width) + 1),
            "custom_params": {"spec": _wish(timing.width)},
        },
    }
    if len(prompts) != timing.batch:
        raise CostTableError(
            f"A batch of {timing.batch} must have as many prompts, got {len(engine.prompts)}.",
            hint="give more prompts",
        )
    samples = Samples()
    try:
        with _post(engine, "/generate", body) as reply:
            _listen(engine, reply, timing, samples, ids)
    except (OSError, urllib.error.URLError) as error:
        raise CostTableError(
            f"The engine must answer at {engine.url}, got {_reason(error)}.",
            hint="sparkctl status; sparkctl logs",
        ) from error
    return samples.corrected()


class Samples:
    """Times of a step, from when parts of one request's reply came. A part is a step; where the engine was
    faster than its reply some parts are two, and the reply's end says how many steps there were."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self.num_parts = 0
        self.num_steps: int | None = None
        self._last: tuple[int, int] | None = None

    def add(self, now_ns: int) -> None:
        self.num_parts += 1
        if self._last is None:
            self._last = (now_ns, self.num_parts)
            return
        since_ns, since = now_ns - self._last[0], self.num_parts - self._last[1]
        if since >= _STEPS_A_SAMPLE or since_ns >= _SHORT_NS * since:
            self.taken.append(since_ns // since)
            self._last = (now_ns, self.num_parts)

    def corrected(self) -> list[int]:
        """The first part is the prefill's, and the last step of an aborted reply may have no part."""
        if self.num_steps is None or self.num_steps <= self.num_parts + 1:
            return self.taken
        return [time_ns * self.num_parts // self.num_steps for time_ns in self.taken]


def _listen(engine: Engine, reply: Any, timing: Timing, samples: Samples, ids: Sequence[str]) -> None:
    """Until num_samples are there, and then until every request of the batch has ended."""
    running: set[int] = set()
    num_warm = 0
    is_over = False
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        now_ns = time.perf_counter_ns()
        index, meta = _read_event(line)
        running.add(index)
        if index == 0 and meta is not None:
            samples.num_steps = meta.get("spec_verify_ct")
        if is_over or index != 0 or len(running) < timing.batch:
            samples.num_parts += index == 0
            continue
        num_warm += 1
        if num_warm <= timing.num_warmup:
            samples.num_parts += 1
            continue
        samples.add(now_ns)
        if len(samples.taken) >= timing.num_samples:
            is_over = True
            for rid in ids:
                _post(engine, "/abort_request", {"rid": rid}).close()


def _read_event(line: bytes) -> tuple[int, Mapping[str, Any] | None]:
    """The request's place in the batch, and its meta_info where it has ended. Only these are parsed: a batch
    of many requests sends thousands of parts a second."""
    if b'"finish_reason":null' in line:
        return int(line[line.rindex(b'"index":') + 8 :].rstrip(b"}\r\n ")), None
    event = json.loads(line.removeprefix(b"data: "))
    if "error" in event:
        raise CostTableError(
            f"The engine must take the requests that are timed, got {event['error']}.",
            hint="start the engine with SPARKCTL_SPEC=1 and extensions.dspark of the recipe",
        )
    return event.get("index", 0), event["meta_info"]


def _wish(width: int) -> object:
    return "draft-only" if width == DRAFT else width


def _post(engine: Engine, path: str, body: Mapping[str, object]) -> Any:
    request = urllib.request.Request(
        engine.url + path, data=json.dumps(body).encode(), headers=engine.headers
    )
    return urllib.request.urlopen(request, timeout=_LIMIT_S)


def _reason(error: OSError) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP {error.code}: {error.read()[:300].decode(errors='replace')}"
    return str(error)
