"""What every suite has in common: its inputs, its plan, and the parameters of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from launcher.bench.settings import BenchSettings
from launcher.bench.text_scale import TextScale
from launcher.bench.wave import Wave


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteInputs:
    """`scale` asks the server at its first use only: suites of short prompts need none."""

    settings: BenchSettings
    context_tokens: int | None
    scale: Callable[[], TextScale]

    def parameters(self, *, max_tokens: int | None = None) -> dict[str, Any]:
        """Of a request of the native protocol."""
        settings = self.settings
        found: dict[str, Any] = {
            "max_tokens": max_tokens or settings.max_tokens,
            "temperature": settings.temperature,
            "seed": settings.seed,
        }
        if settings.forced_length:
            # No min_tokens: with it SGLang runs a penalizer in each step, some percent of a small model's.
            found["ignore_eos"] = True
        if settings.thinking is not None:
            found["chat_template_kwargs"] = {
                "enable_thinking": settings.thinking,
                "thinking": settings.thinking,
            }
        return found

    @property
    def rounds(self) -> range:
        """0 is the warm-up."""
        return range(self.settings.rounds + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuitePlan:
    """`notes`: what was left out or scaled, and why; a person is told, and the manifest keeps it."""

    waves: tuple[Wave, ...]
    notes: tuple[str, ...] = ()


def left_out(suite: str, lengths: list[int], context_tokens: int | None) -> tuple[str, ...]:
    if not lengths:
        return ()
    names = ", ".join(map(str, lengths))
    return (f"{suite}: {names} tokens left out, the server takes {context_tokens}",)
