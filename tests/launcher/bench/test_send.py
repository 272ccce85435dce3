"""One request against a real server: what is counted, and what every kind of broken stream is called."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from launcher.bench.endpoint import Endpoint
from launcher.bench.http_stream import StreamLimits
from launcher.bench.send import Sender
from launcher.bench.wave import Ask, Wave, user_message
from launcher.results.records import RequestRecord
from tests.launcher.bench.replay_server import MODEL, ReplayServer


@pytest.fixture(scope="module")
def server() -> Iterator[ReplayServer]:
    with ReplayServer(key="sk-secret") as running:
        yield running


def send(
    server: ReplayServer, *behaviours: str, stall_s: float = 5.0, key: str | None = "sk-secret"
) -> list[RequestRecord]:
    asks = tuple(
        Ask(name=f"s{n}", body=user_message(f"[{name}] {n}", max_tokens=64))
        for n, name in enumerate(behaviours)
    )
    sender = Sender(
        endpoint=Endpoint(url=server.url, model=MODEL, key=key),
        protocol="sparkctl-1",
        limits=StreamLimits(first_byte_s=5, stall_s=stall_s, total_s=10),
        origin_s=time.monotonic(),
        keep=lambda record, answer: None,
    )
    wave = Wave(suite="decode", case="prose", concurrency=len(asks), round=1, asks=asks)
    return asyncio.run(sender.send_wave(wave))


def test_tokens_come_from_usage_and_not_from_chunks(server: ReplayServer) -> None:
    [record] = send(server, "good")
    assert record.error is None and record.output_text == "The tide turned before noon."
    assert record.completion_tokens == 9 and record.prompt_tokens == 7
    assert len(record.chunk_times_s) == 3  # the empty first delta is no token
    assert record.first_token_s == record.chunk_times_s[0]
    assert record.finish_reason == "stop"
    assert server.seen[-1]["stream_options"] == {"include_usage": True}


def test_reasoning_counts_as_text_and_empty_deltas_do_not(server: ReplayServer) -> None:
    [record] = send(server, "reasoning")
    assert record.output_text == "Let me see. Eleven boats." and len(record.chunk_times_s) == 2


def test_tool_calls_are_joined(server: ReplayServer) -> None:
    [record] = send(server, "tool")
    assert record.tool_calls == ({"name": "search", "arguments": '{"query": "boats"}'},)
    assert record.error is None and record.completion_tokens == 12


def test_an_event_cut_anywhere_is_one_event(server: ReplayServer) -> None:
    [record] = send(server, "split")
    assert record.error is None and record.output_text == "whole"


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [
        ("no usage", "must carry usage"),
        ("error", "out of memory"),
        ("cut off", "before the answer was complete"),
    ],
)
def test_a_broken_stream_is_named(server: ReplayServer, behaviour: str, said: str) -> None:
    [record] = send(server, behaviour)
    assert record.error is not None and said in record.error


def test_a_server_that_stalls_is_named_and_the_others_go_on(server: ReplayServer) -> None:
    slow, good = send(server, "slow", "good", stall_s=0.3)
    assert slow.error == "timeout: stalled for 0.3 s" and slow.output_text == "Eleven"
    assert good.error is None


def test_a_wrong_key_is_an_error_that_does_not_show_it(server: ReplayServer) -> None:
    [record] = send(server, "good", key="sk-wrong")
    assert record.error is not None and record.error.startswith("HTTP 401")
    assert "sk-" not in record.model_dump_json()


def test_nobody_listens() -> None:
    with ReplayServer() as server:
        pass
    [record] = send(server, "good")
    assert record.error is not None and record.error.startswith("connect:")
