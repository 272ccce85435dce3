"""Figures that others published: always labelled third-party, each with its source and its protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

import launcher
from launcher.frozen_model import FrozenModel
from launcher.results.records import Count, Label
from launcher.results.run_directory import read_small
from launcher.results.strict_json import parse_model

# Only in a checkout: a wheel carries no results.
SHIPPED = Path(launcher.__file__).parents[1] / "results" / "reference"

Metric = Literal["request_tokens_per_s", "aggregate_tokens_per_s", "prefill_tokens_per_s", "ttft_s"]


class ReferenceRow(FrozenModel):
    """One published figure. Never measured here, and never compared with a run of another protocol."""

    label: Literal["third-party"]
    who: str
    system: str
    num_nodes: Annotated[int, Field(ge=1)]
    protocol: Label
    protocol_note: str
    metric: Metric
    case: Label
    concurrency: Annotated[int, Field(ge=1)]
    context_tokens: Count | None = None
    value: Annotated[float, Field(gt=0)]
    published: str | None = None
    source: Annotated[str, Field(pattern=r"^https://[^\s]+$")]
    note: str = ""


class ReferenceFile(FrozenModel):
    schema_version: Literal[1] = 1
    rows: Annotated[tuple[ReferenceRow, ...], Field(strict=False)]


def read_references(directory: Path = SHIPPED) -> tuple[ReferenceRow, ...]:
    """Rows of every *.json in `directory`, in file order; none where there is no such directory."""
    if not directory.is_dir():
        return ()
    return tuple(
        row
        for path in sorted(directory.glob("*.json"))
        for row in parse_model(ReferenceFile, read_small(directory, path.name), str(path)).rows
    )


def reference_text(rows: Sequence[ReferenceRow]) -> str:
    content = ReferenceFile(rows=tuple(rows)).model_dump(mode="json")
    return json.dumps(content, indent=1, sort_keys=True) + "\n"
