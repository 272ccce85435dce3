"""JSON that a stranger may have written: no NaN, no infinity, no key twice, no endless nesting."""

from __future__ import annotations

import json
import math
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from launcher.errors import ResultWrong

Model = TypeVar("Model", bound=BaseModel)


def parse_json(text: str | bytes, where: str) -> Any:
    """Raises ResultWrong naming `where`."""
    try:
        return json.loads(
            text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_unique_keys
        )
    except RecursionError:
        raise ResultWrong(f"{where} must be JSON of sane depth, got endless nesting") from None
    except ValueError as error:  # JSONDecodeError, UnicodeDecodeError, a number of 4,300 digits
        raise ResultWrong(f"{where} must be JSON, got: {error}") from error


def parse_model(kind: type[Model], text: str | bytes, where: str) -> Model:
    """Raises ResultWrong naming `where` and the key."""
    parse_json(text, where)
    try:
        return kind.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ResultWrong(
            f"{where} must be a {kind.__name__}, got: {key + ': ' if key else ''}{first['msg']}"
        ) from error


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is no finite number")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(key for key, _ in pairs if sum(key == other for other, _ in pairs) > 1)
        raise ValueError(f"key {twice[:80]!r} stands there twice")
    return found
