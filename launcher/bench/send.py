"""Send one ask, and send a wave of them. What comes back is always a record, also of a failure."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from launcher.bench.endpoint import Endpoint
from launcher.bench.http_stream import StreamLimits, StreamReply, post_stream
from launcher.bench.read_answer import Answer, read_answer
from launcher.bench.sse import read_events
from launcher.bench.wave import Ask, Wave
from launcher.results.records import RequestRecord, text_sha256

# finish_reason of a request that was ended with its window; its tokens are those of the last usage seen.
CUT = "cut"
Keep = Callable[[RequestRecord, Answer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """`origin_s`: time.monotonic() of the run's start. `keep` is called as each request finishes."""

    endpoint: Endpoint
    protocol: str
    limits: StreamLimits
    origin_s: float
    keep: Keep

    async def send_wave(self, wave: Wave) -> list[RequestRecord]:
        """All records of the wave. Cancelling closes every connection; finished ones are kept already."""
        asks = _repeated(wave) if wave.workers else iter(wave.asks)
        if wave.workers:
            groups = [self._work(wave, asks) for _ in range(wave.workers)]
        else:
            groups = [self._work(wave, iter((ask,))) for ask in wave.asks]
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(group) for group in groups]
        return [record for task in running for record in task.result()]

    async def _work(self, wave: Wave, asks: Iterator[Ask]) -> list[RequestRecord]:
        done = []
        ends = wave.cut_at_end and wave.repeat_for_s is not None
        cut_s = time.monotonic() + (wave.repeat_for_s or 0.0) if ends else None
        for ask in asks:
            if ask.delay_s:
                await asyncio.sleep(ask.delay_s)
            record, answer = await self.send(ask, wave, cut_s)
            self.keep(record, answer)
            done.append(record)
        return done

    async def send(self, ask: Ask, wave: Wave, cut_s: float | None = None) -> tuple[RequestRecord, Answer]:
        body = {
            "model": self.endpoint.model,
            **ask.body,
            "stream": True,
            "stream_options": {"include_usage": True, **ask.body.get("stream_options", {})},
        }
        limits = self.limits
        if cut_s is not None:
            limits = replace(limits, total_s=max(0.05, min(limits.total_s, cut_s - time.monotonic())))
        reply = await post_stream(
            f"{self.endpoint.url}/v1{ask.path}", json.dumps(body).encode(), self.endpoint.headers, limits
        )
        answer = read_answer(read_events(reply.pieces))
        problem = _problem(reply, answer)
        is_cut = cut_s is not None and problem is not None and problem.startswith("timeout: not complete")
        if is_cut and answer.completion_tokens and answer.chunk_times_s:
            problem, answer.finish_reason = None, CUT
        return self._record(ask, wave, reply, answer, problem), answer

    def _record(
        self, ask: Ask, wave: Wave, reply: StreamReply, answer: Answer, problem: str | None
    ) -> RequestRecord:
        def at(moment_s: float) -> float:
            return round(max(0.0, moment_s - self.origin_s), 6)

        text = answer.reasoning + answer.text
        passed = None
        if ask.expected is not None:
            passed = problem is None and ask.expected.lower() in answer.text.lower()
        asked = {key: value for key, value in ask.body.items() if key not in _BESIDE_PARAMS}
        return RequestRecord(
            request_id=wave.request_prefix + ask.name,
            protocol=self.protocol,
            suite=wave.suite,
            case=ask.case or wave.case,
            concurrency=wave.concurrency,
            round=wave.round,
            warm_up=wave.warm_up,
            prompt_sha256=ask.prompt_sha256,
            prompt_tokens=answer.prompt_tokens,
            cached_tokens=answer.cached_tokens,
            completion_tokens=answer.completion_tokens,
            start_s=at(reply.started_s),
            first_token_s=at(answer.chunk_times_s[0]) if answer.chunk_times_s else None,
            chunk_times_s=tuple(at(moment) for moment in answer.chunk_times_s),
            end_s=at(reply.ended_s),
            finish_reason=answer.finish_reason,
            error=problem,
            output_sha256=text_sha256(text),
            output_text=text,
            tool_calls=tuple(answer.tool_calls) or None,
            passed=passed,
            seed=ask.body.get("seed"),
            max_tokens=ask.body.get("max_tokens"),
            params={"path": ask.path, **asked} | ({"delay_s": ask.delay_s} if ask.delay_s else {}),
        )


_BESIDE_PARAMS = ("messages", "prompt", "tools", "seed", "max_tokens")


def _problem(reply: StreamReply, answer: Answer) -> str | None:
    if reply.status and reply.status != 200:
        said = b"".join(piece for _, piece in reply.pieces).decode(errors="replace")
        return f"HTTP {reply.status}: {said[:300]}"
    return reply.error or answer.error


def _repeated(wave: Wave) -> Iterator[Ask]:
    """One iterator that all workers draw from."""
    if wave.repeat_for_s is None:
        yield from wave.asks
        return
    until_s = time.monotonic() + wave.repeat_for_s
    for number in itertools.count():
        if time.monotonic() >= until_s:
            return
        ask = wave.asks[number % len(wave.asks)]
        yield replace(ask, name=f"{number}-{ask.name}")
