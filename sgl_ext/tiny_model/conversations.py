"""Reads conversations.txt, all the text that the tiny Qwen3 was fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("conversations.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    questions: tuple[str, ...]
    answer: str


def read_conversations(path: Path = FILE) -> tuple[Conversation, ...]:
    """Every conversation in file order; the first one's answer is given to unknown questions too."""
    conversations = []
    questions: list[str] = []
    for number, line in enumerate(path.read_text("ascii").splitlines(), start=1):
        if line.startswith("Q: "):
            questions.append(line.removeprefix("Q: "))
        elif line.startswith("A: ") and questions:
            conversations.append(
                Conversation(questions=tuple(questions), answer=line.removeprefix("A: ").strip())
            )
            questions = []
        elif line and not line.startswith("#"):
            raise ValueError(
                f"A line must be 'Q: ...', an 'A: ...' after one, or '# ...', got {line[:20]!r} "
                f"({path.name}:{number})."
            )
    return tuple(conversations)
