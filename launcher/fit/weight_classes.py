"""Which part of the model a tensor belongs to: parts are spread over ranks by different rules."""

from __future__ import annotations

import enum
import re


class Part(enum.StrEnum):
    """The words of the report."""

    ROUTED = "routed experts"
    DRAFT_ROUTED = "draft routed experts"
    ATTENTION = "attention, split by head groups"
    DRAFT_ATTENTION = "draft attention, split by head groups"
    WO_A = "wo_a weights"
    DRAFT_WO_A = "draft wo_a weights"
    SHARED = "shared experts"
    DRAFT_SHARED = "draft shared experts"
    VOCABULARY = "embedding and head"
    REPLICATED = "replicated on every rank"
    DRAFT_REPLICATED = "draft, replicated on every rank"
    VISION = "vision"
    ENGRAM_ROWS = "Engram rows"

    @property
    def is_draft(self) -> bool:
        return self.value.startswith("draft")


_LAYER = re.compile(r"(layers|mtp)\.\d+\.")
_RULES = (
    (re.compile(r"ffn\.experts\.\d+\.w[123]\."), Part.ROUTED, Part.DRAFT_ROUTED),
    (re.compile(r"attn\.wo_a\.weight$"), Part.WO_A, Part.DRAFT_WO_A),
    (re.compile(r"attn\.(wq_b|wo_a|wo_b)\."), Part.ATTENTION, Part.DRAFT_ATTENTION),
    (re.compile(r"ffn\.shared_experts\."), Part.SHARED, Part.DRAFT_SHARED),
    (re.compile(r"engram\.embed\.(weight|scale)$"), Part.ENGRAM_ROWS, Part.ENGRAM_ROWS),
)


def classify(name: str) -> Part:
    """A name that no rule knows counts as replicated: every rank pays for it, which is never too little."""
    if name in ("embed.weight", "head.weight"):
        return Part.VOCABULARY
    if name.startswith(("vision.", "aligner.", "image_")):
        return Part.VISION
    layer = _LAYER.match(name)
    is_draft = name.startswith("mtp.")
    if layer:
        rest = name[layer.end() :]
        for pattern, part, draft_part in _RULES:
            if pattern.match(rest):
                return draft_part if is_draft else part
    return Part.DRAFT_REPLICATED if is_draft else Part.REPLICATED
