"""One thing that is wrong in a recipe or topology, with the key it belongs to.

Model validators collect problems and raise them together; read_yaml.py adds file and line to each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """`at` is relative to the model whose validator found it; `message` ends without a full stop."""

    at: KeyPath
    message: str
    hint: str = ""


def raise_problems(problems: Sequence[ConfigProblem]) -> None:
    """Raise all of them as one pydantic error; return when there are none."""
    if not problems:
        return
    text = "; ".join(problem.message for problem in problems)
    raise PydanticCustomError("config_problems", "{text}", {"text": text, "problems": tuple(problems)})


def dotted(path: KeyPath) -> str:
    """('nodes', 0, 'ssh', 'port') -> 'nodes[0].ssh.port'."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
