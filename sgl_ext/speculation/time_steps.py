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
from collections.abc import Iterator, Mapping, Sequence
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
            for mark in _marks(reply, timing):
                samples.add(*mark)
                if len(samples.taken) >= timing.num_samples:
                    break
            for rid in ids:
                _post(engine, "/abort_request", {"rid": rid}).close()
            for _ in reply:  # until every request of the batch has ended
                pass
    except (OSError, urllib.error.URLError) as error:
        raise CostTableError(
            f"The engine must answer at {engine.url}, got {_reason(error)}.",
            hint="sparkctl status; sparkctl logs",
        ) from error
    return samples.taken


class Samples:
    """Times of a step from when steps were over; `taken` in order."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._last: tuple[int, int] | None = None

    def add(self, now_ns: int, steps: int) -> None:
        """steps: that were over by then."""
        if self._last is None:
            self._last = (now_ns, steps)
            return
        since_ns, since = now_ns - self._last[0], steps - self._last[1]
        if since and (since >= _STEPS_A_SAMPLE or since_ns >= _SHORT_NS * since):
            self.taken.append(since_ns // since)
            self._last = (now_ns, steps)


def _marks(reply: Any, timing: Timing) -> Iterator[tuple[int, int]]:
    """When the first request's steps ended, once all requests of the batch run and the warm-up is over."""
    running: set[int] = set()
    first: int | None = None
    for index, meta in _events(reply):
        now_ns = time.perf_counter_ns()
        running.add(index)
        if index != 0 or len(running) < timing.batch or "spec_verify_ct" not in meta:
            continue
        steps = int(meta["spec_verify_ct"])
        first = steps if first is None else first
        if steps - first >= timing.num_warmup:
            yield now_ns, steps


def _events(reply: Any) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for line in reply:
        text = line.decode().strip()
        if not text.startswith("data:") or text == "data: [DONE]":
            continue
        event = json.loads(text.removeprefix("data:"))
        if "error" in event:
            raise CostTableError(
                f"The engine must take the requests that are timed, got {event['error']}.",
                hint="start the engine with SPARKCTL_SPEC=1 and extensions.dspark of the recipe",
            )
        yield event.get("index", 0), event["meta_info"]


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
