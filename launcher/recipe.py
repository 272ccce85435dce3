"""Frozen model of recipes/*.yaml: what is served, by which engine, how it is spread, with which settings.

A key that is None or absent leaves the choice to the engine; every other default is written here, once.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from launcher.config_problem import raise_problems
from launcher.frozen_model import FrozenModel, TextTuple
from launcher.recipe_rules import recipe_problems

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0)]
Gib = Annotated[float, Field(ge=0)]
FlagScalar = bool | int | float | str
FlagValue = FlagScalar | Annotated[tuple[FlagScalar, ...], Field(strict=False)]


class ModelSource(FrozenModel):
    """`path` is absolute (or starts with ~) on the node, or relative to the node's paths.models."""

    path: Text
    repo: Text | None = None
    revision: Text | None = None
    served_name: Text | None = None


class Engine(FrozenModel):
    runtime: Literal["venv", "docker", "cpu"]
    sglang_version: Annotated[str, Field(pattern=r"^\d+\.\d+\.\d+([a-z0-9.+-]*)$")] = "0.5.23"
    image: Text | None = None


class Parallelism(FrozenModel):
    """tp * pp ranks, one per GPU; ep splits the experts of a tp group. `groups` copies of the model share the
    nodes evenly, each with tp * pp ranks of its own, behind the router.

    `sequence_parallel_from`: tokens of a prefill chunk from which on its rows are split."""

    nodes: Annotated[int, Field(ge=1, le=8)]
    groups: Annotated[int, Field(ge=1, le=4)] = 1
    gpus_per_node: Annotated[int, Field(ge=1, le=8)] = 1
    tp: Positive
    ep: Positive = 1
    pp: Positive = 1
    sequence_parallel: Literal["off", "prefill"] = "off"
    # What a kit for four Sparks reported +20 % with; on two H200 chunks of 8192 were no faster yet.
    # https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks
    sequence_parallel_from: Positive = 2048


class Router(FrozenModel):
    """sglang-router in front of the groups, on the first node. It then serves server.host and server.port."""

    policy: Literal["cache_aware", "round_robin", "power_of_two", "random"] = "cache_aware"
    # The router's own 64 is far above what a Spark runs at a time: balancing would never start.
    balance_abs_threshold: Positive = 4
    health_interval_s: Positive = 5


class EngramExtension(FrozenModel):
    """Where the Engram rows live. `packed_path` is absolute, or relative to the node's paths.engram."""

    residence: Literal["none", "device", "host", "nvme"] = "none"
    packed_path: Text | None = None
    cache_gib: Gib = 0.0
    lookahead_gib: Gib = 0.0


class ExpertsExtension(FrozenModel):
    """MXFP4 expert kernels; `auto` leaves the choice to the engine."""

    backend: Literal["auto", "flashinfer_mxfp4", "marlin", "b12x", "reference"] = "auto"


class DSparkExtension(FrozenModel):
    """Speculative decoding with the draft that the checkpoint carries."""

    enabled: bool = False
    # The draft is trained for blocks of 5; acceptance does not extend beyond.
    block_size: Annotated[int, Field(ge=1, le=16)] = 5
    verify: Literal["static", "cap-accept", "compact"] = "static"
    # auto: how much of the block is verified is decided for every request and step (docs/speculation.md).
    width: Literal["block", "auto"] = "block"


class Extensions(FrozenModel):
    """`kv_layout`: v41 stores 528 and 288 bytes a token in place of 584, where its boot check passes; auto
    takes the smallest that passes on every rank."""

    kv_layout: Literal["v4", "v41", "auto"] = "v4"
    # auto: what is faster of those that pass at boot (docs/sm12x.md); bf16 is SGLang's own.
    wo_a: Literal["auto", "bf16", "fp8"] = "auto"
    engram: EngramExtension = EngramExtension()
    experts: ExpertsExtension = ExpertsExtension()
    dspark: DSparkExtension = DSparkExtension()


class Server(FrozenModel):
    """SGLang's settings by their own names; `flags` takes every other long option, without dashes."""

    host: Text = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = 30000
    dtype: Text | None = None
    context_length: Positive | None = None
    max_total_tokens: Positive | None = None
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    max_running_requests: Positive | None = None
    # -1 turns chunks off; `auto` takes the largest that the memory rule of `fit` allows.
    chunked_prefill_size: Annotated[int, Field(ge=-1)] | Literal["auto"] | None = None
    kv_cache_dtype: Text | None = None
    attention_backend: Text | None = None
    sampling_backend: Text | None = None
    grammar_backend: Text | None = None
    moe_runner_backend: Text | None = None
    fp8_gemm_backend: Text | None = None
    tool_call_parser: Text | None = None
    reasoning_parser: Text | None = None
    random_seed: Annotated[int, Field(ge=0)] | None = None
    watchdog_timeout_s: Seconds | None = None
    dist_timeout_s: Positive | None = None
    enable_metrics: bool = True
    api_key: Literal["auto", "none"] = "auto"
    flags: dict[str, FlagValue] = {}

    @property
    def is_loopback(self) -> bool:
        """True when only this node can reach the API."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Limits(FrozenModel):
    """When the launcher gives up, and what it refuses to plan."""

    # Slow starts are real: 12 to 13 minutes were reported for three Sparks that read over NFS.
    ready_timeout_s: Seconds = 1800.0
    freeze_timeout_s: Seconds = 10.0
    peer_timeout_s: Seconds = 15.0
    stop_timeout_s: Seconds = 20.0


class Evidence(FrozenModel):
    """What has been run. `not_run` is the truth until a run's files are under results/."""

    status: Literal["not_run", "run"] = "not_run"
    hardware: Text | None = None
    runs: TextTuple = ()
    notes: str = ""


class Recipe(FrozenModel):
    schema_version: Literal[1]
    name: Name
    description: str = ""
    extends: Text | None = None
    # The profile in effect: a key of `profiles`, whose values lie over the recipe's own.
    profile: Name | None = None
    profiles: dict[Name, dict[str, Any]] = {}
    model: ModelSource
    engine: Engine
    parallelism: Parallelism
    extensions: Extensions = Extensions()
    server: Server = Server()
    router: Router | None = None
    environment: dict[str, str] = {}
    limits: Limits = Limits()
    evidence: Evidence = Evidence()

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        raise_problems(recipe_problems(self))
        return self

    @property
    def nodes_per_group(self) -> int:
        return self.parallelism.nodes // self.parallelism.groups

    @property
    def num_ranks(self) -> int:
        """Ranks of one copy of the model."""
        return self.nodes_per_group * self.parallelism.gpus_per_node

    @property
    def served_name(self) -> str:
        """Name that clients pass as `model`."""
        return self.model.served_name or self.model.repo or self.model.path
