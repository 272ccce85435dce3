"""What is sent together: one wave is one round of one case at one concurrency,
and what a resumed run skips.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from launcher.results.manifest import canonical_json
from launcher.results.records import text_sha256

Path = Literal["/chat/completions", "/completions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request before it is sent. `name` is unique in its wave. `expected`: text that a right answer has.

    `delay_s`: after the wave's start. `body` has all but model and stream.
    """

    name: str
    body: dict[str, Any]
    path: Path = "/chat/completions"
    delay_s: float = 0.0
    expected: str | None = None
    case: str | None = None  # of its own, where a wave mixes two kinds of requests
    may_be_short: bool = False  # its text is not judged: a one-word reply

    @property
    def prompt(self) -> str:
        """What is hashed: the text of a single message, otherwise everything that the model reads."""
        messages = self.body.get("messages")
        if messages is None:
            return str(self.body["prompt"])
        if len(messages) == 1 and "tools" not in self.body:
            return str(messages[0]["content"])
        return canonical_json({key: self.body[key] for key in ("messages", "tools") if key in self.body})

    @property
    def prompt_sha256(self) -> str:
        return text_sha256(self.prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """`workers`: this many send the asks one after the other (closed loop); None: all asks start together.

    `repeat_for_s`: the asks are repeated in order until then. `is_cold`: nothing of the prompts may come from
    the prefix cache; `is_warm`: most must. A warm-up wave is recorded and never counted.
    """

    suite: str
    case: str
    concurrency: int
    round: int
    asks: tuple[Ask, ...]
    warm_up: bool = False
    workers: int | None = None
    repeat_for_s: float | None = None
    cut_at_end: bool = False  # requests that are still running then end too, and count what they had
    is_cold: bool = False
    is_warm: bool = False

    @property
    def key(self) -> tuple[str, str, int, int]:
        return (self.suite, self.case, self.concurrency, self.round)

    @property
    def request_prefix(self) -> str:
        """Every request_id of this wave begins so, and none of another wave."""
        case = "".join(letter if letter.isalnum() else "-" for letter in self.case)
        return f"{self.suite}-{case}-c{self.concurrency}-r{self.round}-"

    @property
    def name(self) -> str:
        return f"{self.suite} {self.case} C{self.concurrency} round {self.round}"


def user_message(text: str, **parameters: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **parameters}
