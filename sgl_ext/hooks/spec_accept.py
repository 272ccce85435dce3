"""accept_draft_tokens: a request accepts at most the width that was planned for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import current_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Cutoff:
    """All that SGLang's accept reads of a ragged layout."""

    verify_lens: Any


def accept_at_most(original: Callable[..., Any], **kwargs: Any) -> Any:
    step = current_step()
    if step is not None and step.verify_lens is not None and kwargs.get("cutoff_layout") is None:
        kwargs["cutoff_layout"] = Cutoff(verify_lens=step.verify_lens)
    return original(**kwargs)


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_verify.accept_draft_tokens",
    kind=HookKind.AROUND,
    replacement=accept_at_most,
    reason="a static graph verifies whole blocks; SGLang's accept honours a cutoff, but none is given there",
    sglang_versions=("0.5.23",),
    fingerprint="b09044292ba27b3c",
    remove_when="SGLang takes verify lengths from a plugin in static mode",
)
