"""Names, kinds and choices of the engine's command line options, read from the SGLang wheel of that version.

The lists are data beside this module (sglang_options_<version>.json); launcher never imports the engine.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOption:
    """`switch` is given or not (--x and --no-x are two of them), `value` takes one word, `list` several."""

    kind: Literal["switch", "value", "list"]
    choices: tuple[str, ...] = ()


@functools.cache
def engine_options(sglang_version: str) -> Mapping[str, EngineOption] | None:
    """Options by name without dashes; None for a version whose list is not shipped."""
    path = Path(__file__).parent / f"sglang_options_{sglang_version.replace('.', '_')}.json"
    if not path.is_file():
        return None
    entries = json.loads(path.read_text(encoding="utf-8"))
    return {
        name: EngineOption(
            kind=entry["kind"], choices=tuple(str(choice) for choice in entry.get("choices", ()))
        )
        for name, entry in entries.items()
    }
