"""The complete request of a benchmark, without where it is sent: read back to run the same again."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from launcher.frozen_model import FrozenModel, TextTuple

Numbers = Annotated[tuple[int, ...], Field(strict=False)]
Protocol = Literal["sparkctl-1", "sparkdash", "lil", "llama-benchy"]
SUITES = ("decode", "prefill", "mixed", "prefix", "needle", "soak")
KINDS = ("prose", "code", "structured", "json", "tools")
FEATURES = ("speculation", "engram", "prefix-cache")
OUTPUT_PROBLEMS = ("empty", "garbled", "repeated")
# 93,335 and 150,000 tokens are what others publish the short request's wait behind.
MIXED_TOKENS = (93_335, 150_000)
PREFILL_TOKENS = tuple(4096 * 2**step for step in range(9))
NEEDLE_TOKENS = (4096, 32768, 131072, 262144)


class BenchSettings(FrozenModel):
    """Times in seconds, lengths in tokens of the served model. `rounds` are counted; one more comes before
    them and is discarded.

    `forced_length`: every answer has exactly max_tokens (ignore_eos); without it an answer ends where the
    model ends it. `thinking`: None leaves it to the server. `step_bytes` and `bandwidth_bytes_per_s`
    (what one decode step must read, and how fast memory is) give the bound of steps/s, where known.
    """

    protocol: Protocol = "sparkctl-1"
    suites: TextTuple = ("decode",)
    seed: int = 1
    rounds: Annotated[int, Field(ge=1)] = 3
    concurrency: Numbers = (1, 2, 4, 8, 16)
    kinds: TextTuple = KINDS
    max_tokens: Annotated[int, Field(ge=2)] = 256
    temperature: float = 0.0
    forced_length: bool = False
    thinking: bool | None = None
    prefill_tokens: Numbers = PREFILL_TOKENS
    mixed_tokens: Numbers = MIXED_TOKENS
    needle_tokens: Numbers = NEEDLE_TOKENS
    prefix_tokens: Numbers = (16_384, 150_000)
    mixed_delay_s: float = 0.5
    soak_s: float = 3600.0
    soak_concurrency: int = 8
    window_s: float = 30.0
    first_token_timeout_s: float = 2700.0
    stall_timeout_s: float = 300.0
    request_timeout_s: float = 3600.0
    expect: TextTuple = ()
    allow: TextTuple = ()
    step_bytes: float | None = None
    bandwidth_bytes_per_s: float | None = None
    after_restart: bool = False
    tokenizer: str | None = None

    @property
    def protocol_label(self) -> str:
        """Forced and free length are two protocols: their figures do not compare."""
        forced = self.protocol == "sparkctl-1" and self.forced_length
        return f"{self.protocol}-forced" if forced else self.protocol

    @property
    def longest_tokens(self) -> int:
        """Of the long prompts of the suites asked for; other protocols have lengths of their own."""
        lengths = {
            "prefill": self.prefill_tokens, "mixed": self.mixed_tokens,
            "prefix": self.prefix_tokens, "needle": self.needle_tokens,
        }  # fmt: skip
        suites = self.suites if self.protocol == "sparkctl-1" else tuple(lengths)
        return max((n for suite in suites for n in lengths.get(suite, ())), default=0)
