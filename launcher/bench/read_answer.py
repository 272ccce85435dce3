"""Timed events of a streamed OpenAI answer -> text, tool calls, counts. Tokens come from `usage`, never from
the number of chunks: with speculative decoding one chunk carries several tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from launcher.bench.sse import DONE


@dataclass(slots=True, kw_only=True)
class Answer:
    """`chunk_times_s`: arrivals of chunks with text, reasoning or part of a tool call, on the clock of the
    events. `content_idx`: position in it of the first one with an answer, not reasoning.
    """

    text: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    chunk_times_s: list[float] = field(default_factory=list)
    content_idx: int | None = None
    reasoning_chunks: int = 0
    usage_times: list[tuple[float, int]] = field(default_factory=list)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    error: str | None = None


def read_answer(events: Iterable[tuple[float, bytes]]) -> Answer:
    """Never raises: what is wrong with the stream is `error`."""
    answer = Answer()
    text: list[str] = []
    reasoning: list[str] = []
    is_done = False
    for arrived_s, payload in events:
        if payload == DONE:
            is_done = True
            break
        try:
            event = json.loads(payload)
        except ValueError:
            answer.error = f"an event must be JSON, got {payload[:80].decode(errors='replace')!r}"
            break
        if not isinstance(event, dict) or event.get("error") or event.get("object") == "error":
            said = event.get("error") or event.get("message") if isinstance(event, dict) else event
            answer.error = f"the server reported an error inside the stream: {json.dumps(said)[:300]}"
            break
        if event.get("usage"):
            _take_usage(answer, arrived_s, event["usage"])
        for choice in event.get("choices") or ():
            _take_choice(answer, choice, arrived_s, text, reasoning)
    answer.text, answer.reasoning = "".join(text), "".join(reasoning)
    if answer.error is None:
        answer.error = _problem(answer, is_done=is_done)
    return answer


def _take_choice(
    answer: Answer, choice: dict[str, Any], arrived_s: float, text: list[str], reasoning: list[str]
) -> None:
    delta = choice.get("delta") or {}
    content = delta.get("content") or choice.get("text") or ""
    thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
    calls = delta.get("tool_calls") or ()
    if content or thought or calls:
        if thought and not content and not calls:
            answer.reasoning_chunks += 1
        elif answer.content_idx is None:
            answer.content_idx = len(answer.chunk_times_s)
        answer.chunk_times_s.append(arrived_s)
        text.append(content)
        reasoning.append(thought)
    for call in calls:
        _join_call(answer.tool_calls, call)
    answer.finish_reason = choice.get("finish_reason") or answer.finish_reason


def _join_call(calls: list[dict[str, Any]], part: dict[str, Any]) -> None:
    idx = part.get("index") or 0
    while len(calls) <= idx:
        calls.append({"name": "", "arguments": ""})
    function = part.get("function") or {}
    calls[idx]["name"] += function.get("name") or ""
    calls[idx]["arguments"] += function.get("arguments") or ""


def _take_usage(answer: Answer, arrived_s: float, usage: dict[str, Any]) -> None:
    answer.prompt_tokens = usage.get("prompt_tokens")
    answer.completion_tokens = usage.get("completion_tokens")
    answer.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if answer.completion_tokens is not None:
        answer.usage_times.append((arrived_s, answer.completion_tokens))


def _problem(answer: Answer, *, is_done: bool) -> str | None:
    if not is_done:
        return "the stream must end with [DONE], got its end without"
    if answer.completion_tokens is None or answer.prompt_tokens is None:
        return "the answer must carry usage, got none: tokens cannot be counted"
    if answer.completion_tokens and not answer.chunk_times_s:
        return f"the answer must have text, got {answer.completion_tokens} tokens and none"
    return None
