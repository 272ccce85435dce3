"""What Engram rows on NVMe should cost a decode step: reads of a layer against the step's time before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.fit.model_shape import ModelShape, shipped_shape
from launcher.performance.acceptance import PROSE
from launcher.performance.constants import Fitted, constant, fitted
from launcher.performance.decode_step import decode_step
from launcher.performance.stack import Stack

STREAMS = (1, 4, 8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngramWait:
    """Of one Engram layer in one step, every row cold. `reads`: of one node. `read_ms`: at the published
    rate, at least one read's latency, after the reads of the layers before it. `slack_ms`: the verify pass
    up to the layer. `exposed_ms`: what the step waits for."""

    sparks: int
    streams: int
    layer: int
    step_ms: float
    reads: float
    read_ms: float
    slack_ms: float

    @property
    def exposed_ms(self) -> float:
        return max(0.0, self.read_ms - self.slack_ms)


def engram_waits(known: Fitted | None = None) -> tuple[EngramWait, ...]:
    """Three and four Sparks, blocks of five, this project's layout."""
    shape, parameters = shipped_shape("v41-flash"), known or fitted()
    stacks = (
        Stack(tp=3, heads=72, collective="nccl_triangle"),
        Stack(tp=4, ep=2, collective="nccl_switch"),
    )
    return tuple(
        wait for stack in stacks for streams in STREAMS for wait in _waits(shape, stack, parameters, streams)
    )


def _waits(shape: ModelShape, stack: Stack, known: Fitted, streams: int) -> Iterator[EngramWait]:
    config = shape.config
    step = decode_step(shape, stack, known, streams=streams, tokens_per_step=PROSE)
    # Rows can be read as soon as the draft block is known.
    per_layer_ms = (step.total_ms - step.draft_ms) / config.num_hidden_layers
    columns = (config.engram_max_ngram_size - 1) * config.engram_n_heads
    reads = streams * (1 + stack.block) * columns / stack.tp
    waited = before = 0.0
    for layer in config.engram_layer_ids:
        before += reads
        read_ms = max(1e3 * before / constant("nvme_rows_per_s"), 1e-3 * constant("nvme_read_latency_us"))
        wait = EngramWait(
            sparks=stack.tp,
            streams=streams,
            layer=layer,
            step_ms=step.total_ms,
            reads=reads,
            read_ms=read_ms,
            slack_ms=layer * per_layer_ms + waited,
        )
        waited += wait.exposed_ms
        yield wait
