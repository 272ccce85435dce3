"""What the server is asked to count before long prompts are made."""

from __future__ import annotations

import pytest

from launcher.bench.endpoint import Endpoint
from launcher.bench.settings import BenchSettings
from launcher.bench.text_scale import measure_text_scale
from tests.launcher.bench.replay_server import MODEL, ReplayServer


@pytest.mark.parametrize(("longest", "num_chars"), [(100, 512), (1000, 1000), (1 << 20, 24_000)])
def test_no_passage_is_much_longer_than_the_longest_prompt(longest: int, num_chars: int) -> None:
    """To count is to prefill: three passages of 3000 characters took 100 s on a server of 60 tokens/s."""
    with ReplayServer() as server:
        scale = measure_text_scale(Endpoint(url=server.url, model=MODEL), 1 << 20, longest, 1)
        asked = [len(body["messages"][0]["content"]) for body in server.seen]
    assert asked == [1, num_chars, num_chars, num_chars]
    assert scale.chars_per_token == pytest.approx(4, rel=0.05)


def test_only_the_suites_asked_for_count() -> None:
    lengths = {"prefill_tokens": (256, 512), "needle_tokens": (2048,)}
    assert BenchSettings.model_validate({"suites": ("prefill",), **lengths}).longest_tokens == 512
    assert BenchSettings.model_validate({"suites": ("prefill", "needle"), **lengths}).longest_tokens == 2048
    assert BenchSettings.model_validate({"suites": ("decode", "soak"), **lengths}).longest_tokens == 0
    lil = BenchSettings.model_validate({"protocol": "lil", "suites": ("decode",)})
    assert lil.longest_tokens == 1 << 20, "its decode prompts have contexts too"
