"""How long a text must be for a number of tokens: the launcher has no tokenizer, the server counts."""

from __future__ import annotations

import json
from dataclasses import dataclass

import httpx

from launcher.bench.corpus import Corpus, read_corpus
from launcher.bench.endpoint import Endpoint
from launcher.bench.errors import BenchUnanswered
from launcher.bench.wave import user_message

_SAMPLES = 3
_LEAST_CHARS, _MOST_CHARS = 512, 24_000
_TIMEOUT_S = 300.0
# A short text is one or two passages, and a dense one has a third more tokens than the average.
MARGIN, MARGIN_OF_ONE_TOKEN = 0.05, 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TextScale:
    """`overhead_tokens`: what the chat template adds."""

    chars_per_token: float
    overhead_tokens: int
    corpus: Corpus

    def text(self, num_tokens: int, seed: str) -> str:
        """About `num_tokens` of the served model; how many they were is in the answer's usage."""
        wanted = max(1, num_tokens - self.overhead_tokens)
        return self.corpus.text(round(wanted * self.chars_per_token), seed)


def fits(num_tokens: int, max_tokens: int, context_tokens: int | None) -> bool:
    margin = MARGIN + MARGIN_OF_ONE_TOKEN / max(1, num_tokens) ** 0.5
    return context_tokens is None or num_tokens * (1 + margin) + max_tokens + 16 <= context_tokens


def measure_text_scale(
    endpoint: Endpoint, context_tokens: int | None, longest_tokens: int, seed: int
) -> TextScale:
    """Asks the server to count a few passages, one token of answer each.

    `longest_tokens`: of the prompts to come. To count is to prefill: on a slow server passages much longer
    than these would take longer than what is measured.
    """
    corpus = read_corpus()
    # A character is one token at most: byte-level tokenizers never need two for ASCII.
    num_chars = min(_MOST_CHARS, (context_tokens or _MOST_CHARS) * 3 // 4, max(longest_tokens, _LEAST_CHARS))
    overhead = _count(endpoint, "a") - 1
    tokens = sum(
        _count(endpoint, corpus.text(num_chars, f"scale/{seed}/{number}")) - overhead
        for number in range(_SAMPLES)
    )
    return TextScale(
        chars_per_token=_SAMPLES * num_chars / max(1, tokens), overhead_tokens=max(0, overhead), corpus=corpus
    )


def _count(endpoint: Endpoint, text: str) -> int:
    body = {"model": endpoint.model, **user_message(text, max_tokens=1, temperature=0)}
    try:
        reply = httpx.post(
            f"{endpoint.url}/v1/chat/completions", json=body, headers=endpoint.headers, timeout=_TIMEOUT_S
        )
        if reply.status_code != 200:
            raise ValueError(f"HTTP {reply.status_code}: {reply.text[:200]}")
        return int(reply.json()["usage"]["prompt_tokens"])
    except (httpx.HTTPError, json.JSONDecodeError, ValueError, KeyError, TypeError) as error:
        raise BenchUnanswered(
            f"the server must count the tokens of a prompt of {len(text)} characters, got {error}",
            hint="sparkctl status; sparkctl logs",
        ) from error
