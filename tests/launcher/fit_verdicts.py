"""What happened to published servers, and what the rules of `fit` say about the same settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from launcher.fit.fit_problem import FitProblem
from launcher.fit.fit_rules import budget_problems
from launcher.fit.memory_budget import MemorySettings
from launcher.fit.rank_weights import split_problems
from tests.launcher.fit_figures import MIAAI
from tests.launcher.fit_settings import SHAPE, server

OXSERO = "0xSero/local-ai-registry PR 61"
CQINGWANG = "cqingwang/DeepSeek-v4.1-Flash-DGX-Sparks: docs/overnight-results.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What happened, in public, and what the rules say. `refused_by`: the check that refuses, or nothing."""

    what: str
    happened: str
    source: str
    refused_by: str


def verdicts() -> Iterator[Verdict]:
    for what, settings, happened, source in _served():
        problems = budget_problems(SHAPE, settings)
        yield Verdict(what=what, happened=happened, source=source, refused_by=_first_refusal(problems))
    for what, settings, source in _kernel_shapes():
        problems = tuple(split_problems(SHAPE.config, settings.split, expert_backend="auto"))
        yield Verdict(
            what=what,
            happened="raises while the model is built",
            source=source,
            refused_by=_first_refusal(problems),
        )
    pinned = server(
        tp=4, requests=16, chunk=4096, tokens=8_000_000, mem_fraction=0.80, cache_gib=4, context=1048576
    )
    clamped = [problem.check for problem in budget_problems(SHAPE, pinned) if problem.check == "pool-clamped"]
    yield Verdict(
        what="four Sparks, 8,000,000 tokens pinned at mem-fraction 0.80",
        happened="the engine clamped it to 5.98 to 6.49 million",
        source=MIAAI,
        refused_by=f"warned: {clamped[0]}" if clamped else "",
    )


def _served() -> Iterator[tuple[str, MemorySettings, str, str]]:
    yield "native experts on two Sparks", server(tp=2), "does not fit, refused by doctor there", MIAAI
    ran, ended = "ran", "NV_ERR_NO_MEMORY, host hang"
    for chunk, prefix, happened in ((2048, 100_000, ran), (1024, 208_000, ran), (1024, 256_000, ended)):
        settings = server(tp=3, heads=96, draft_experts=129, chunk=chunk, context=prefix, mem_fraction=0.95)
        yield f"three Sparks, chunk {chunk}, prompt of {prefix}", settings, happened, CQINGWANG
    yield (
        "three Sparks, 3,000,000 tokens",
        server(tp=3, chunk=768, verify=4, tokens=3_000_000, mem_fraction=0.95),
        "free memory swings between 3 and 7.5 GB, too large a pool",
        f"{MIAAI} issue 11",
    )
    for tokens, happened in ((8_000_000, "1.05 GB left, given up"), (6_000_000, "served instead")):
        settings = server(
            tp=4,
            ep=2,
            requests=48,
            chunk=4096,
            context=420_000,
            tokens=tokens,
            cache_gib=4,
            query_row_ranks=4,
        )
        yield f"four Sparks, {tokens:,} tokens, prompt of 420,000", settings, happened, OXSERO


def _kernel_shapes() -> Iterator[tuple[str, MemorySettings, str]]:
    yield "four Sparks, ep 1: expert width 576", server(tp=4, ep=1), OXSERO
    yield "eight Sparks, ep 1: expert width 288", server(tp=8, ep=1), OXSERO
    yield "three Sparks, ep 3: 128 draft experts", server(tp=3, ep=3), "SGLang 0.5.23: FusedMoE's assert"


def _first_refusal(problems: tuple[FitProblem, ...]) -> str:
    return next((problem.check for problem in problems if problem.level == "refuse"), "")
