"""Raw records of a benchmark run, one JSON object a line. Seconds since the run's start, monotonic."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field, JsonValue, model_validator

from launcher.config_problem import ConfigProblem, raise_problems
from launcher.frozen_model import FrozenModel

SCHEMA_VERSION = 1

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
# Nodes have no name of their own in a result: node-0 is the head, the number is the node's rank.
NodeAlias = Annotated[str, Field(pattern=r"^node-[0-9]{1,2}$")]
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@+ /-]{0,127}$")]
Time = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]
Times = Annotated[tuple[Time, ...], Field(strict=False)]


def text_sha256(text: str) -> str:
    """sha256 of the UTF-8 bytes of a prompt or an output."""
    return hashlib.sha256(text.encode()).hexdigest()


class RequestRecord(FrozenModel):
    """One request, whether it was answered or not.

    completion_tokens comes from the answer's `usage`: chunks hold any number of tokens. chunk_times_s has the
    arrival of each chunk that held text, reasoning or part of a tool call. A record with warm_up set is kept
    and never counted. `passed` is the verdict of a suite that knows the right answer.
    """

    schema_version: Literal[1] = 1
    request_id: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
    protocol: Label
    suite: Label
    case: Label
    concurrency: Annotated[int, Field(ge=1)]
    round: Count
    warm_up: bool
    prompt_sha256: Sha256
    prompt_tokens: Count | None
    cached_tokens: Count | None
    completion_tokens: Count | None
    start_s: Time
    first_token_s: Time | None
    chunk_times_s: Times
    end_s: Time
    finish_reason: str | None
    error: str | None
    output_sha256: Sha256
    output_text: str
    tool_calls: Annotated[tuple[dict[str, JsonValue], ...], Field(strict=False)] | None = None
    passed: bool | None = None
    seed: int | None
    max_tokens: Annotated[int, Field(ge=1)] | None
    params: dict[str, JsonValue] = {}

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        raise_problems([ConfigProblem(at=(key,), message=text) for key, text in _request_problems(self)])
        return self

    @property
    def last_chunk_s(self) -> float:
        """When the last text arrived; the end of the answer where no chunk was seen."""
        return self.chunk_times_s[-1] if self.chunk_times_s else self.end_s


def _request_problems(record: RequestRecord) -> list[tuple[str, str]]:
    problems = []
    if record.output_sha256 != text_sha256(record.output_text):
        problems.append(("output_sha256", "output_sha256 must be the sha256 of output_text"))
    times = (record.start_s, *record.chunk_times_s, record.end_s)
    if any(later < earlier for earlier, later in pairwise(times)):
        problems.append(("chunk_times_s", "start_s, chunk_times_s and end_s must ascend"))
    first_s = record.first_token_s
    if first_s is not None and not record.start_s <= first_s <= record.last_chunk_s:
        problems.append(("first_token_s", "first_token_s must lie between start_s and the last chunk"))
    if record.error is None and (record.completion_tokens is None or record.prompt_tokens is None):
        problems.append(("completion_tokens", "an answered request must have the token counts of its usage"))
    if record.error is None and record.completion_tokens and first_s is None:
        problems.append(("first_token_s", "an answer with tokens must have first_token_s"))
    if (record.cached_tokens or 0) > (record.prompt_tokens or 0):
        problems.append(("cached_tokens", "cached_tokens must be at most prompt_tokens"))
    return problems


class EngineSample(FrozenModel):
    """The engine's /metrics just before or after one round of a case: 'name{labels}' -> finite value."""

    schema_version: Literal[1] = 1
    protocol: Label
    suite: Label
    case: Label
    concurrency: Annotated[int, Field(ge=1)]
    round: Count
    warm_up: bool = False
    when: Literal["before", "after"]
    time_s: Time
    metrics: Mapping[str, float]


class NodeSample(FrozenModel):
    """What one node was like at one moment; a node without such a sensor leaves it None."""

    schema_version: Literal[1] = 1
    node: NodeAlias
    time_s: Time
    gpu_clock_mhz: Annotated[float, Field(ge=0)] | None = None
    gpu_temperature_c: float | None = None
    gpu_power_w: Annotated[float, Field(ge=0)] | None = None
    gpu_used_share: Annotated[float, Field(ge=0, le=1)] | None = None
    cpu_clock_mhz: Annotated[float, Field(ge=0)] | None = None
    cpu_temperature_c: float | None = None
    cpu_used_share: Annotated[float, Field(ge=0, le=1)] | None = None
    load_1min: Annotated[float, Field(ge=0)] | None = None
    memory_available_bytes: Count | None = None
    swap_used_bytes: Count | None = None
