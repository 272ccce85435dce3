"""The cost table as a file: its hash is checked, and so is what it was measured on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sgl_ext.errors import CostTableError
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.write_atomically import write_atomically

_MEASURE = "measure it again; docs/speculation.md says how"
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class MeasuredEngine(_Strict):
    """What a table is valid for; another value of any of them gives other times."""

    sglang: str
    model: str  # name and revision
    tp_size: Count
    verify: Literal["static", "cap-accept", "compact", "compact-plain-graphs"]
    block: Count
    context_tokens: Count  # length of the prompts that were timed


class CostTableFile(_Strict):
    """Schema of the file. samples: steps behind each median, the same shape as verify_ns."""

    schema_version: Literal[1]
    engine: MeasuredEngine
    batches: list[int]
    verify_ns: list[list[int]]
    draft_ns: list[int]
    samples: list[list[int]]
    hash: str

    def table(self) -> CostTable:
        """Raises CostTableError where the times are impossible."""
        return CostTable(
            batches=tuple(self.batches),
            verify_ns=tuple(tuple(row) for row in self.verify_ns),
            draft_ns=tuple(self.draft_ns),
        )


def canonical_hash(engine: MeasuredEngine, table: CostTable) -> str:
    """Of everything a decision depends on, and nothing else: what ranks compare before they start."""
    content = {
        "engine": engine.model_dump(),
        "batches": table.batches,
        "verify_ns": table.verify_ns,
        "draft_ns": table.draft_ns,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def write_cost_table(path: Path, engine: MeasuredEngine, table: CostTable, samples: list[list[int]]) -> str:
    """Writes the file in one step and returns the table's hash."""
    digest = canonical_hash(engine, table)
    file = CostTableFile(
        schema_version=1,
        engine=engine,
        batches=list(table.batches),
        verify_ns=[list(row) for row in table.verify_ns],
        draft_ns=list(table.draft_ns),
        samples=samples,
        hash=digest,
    )
    write_atomically(path, (json.dumps(file.model_dump(), indent=1) + "\n").encode())
    return digest


def load_cost_table(path: Path, running: MeasuredEngine) -> tuple[CostTable, str]:
    """The table and its hash. Raises CostTableError for a file that is broken, edited, or of another engine
    than the running one: times of another engine would turn the regret bound into a guess."""
    try:
        file = CostTableFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise CostTableError(
            f"The cost table must be readable, got {error.strerror} ({path}).", hint=_MEASURE
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "file"
        raise CostTableError(
            f"The cost table must follow schema 1, got {first['msg']} at {where} ({path}).", hint=_MEASURE
        ) from error
    table = file.table()
    if table.block != file.engine.block:
        raise CostTableError(
            f"The cost table must have widths 0 to {file.engine.block}, got 0 to {table.block} ({path}).",
            hint=_MEASURE,
        )
    digest = canonical_hash(file.engine, table)
    if digest != file.hash:
        raise CostTableError(
            f"The cost table must have the hash of its content, {digest}, got {file.hash} ({path}).",
            hint="the file was edited; " + _MEASURE,
        )
    for name, wanted in running.model_dump().items():
        seen = getattr(file.engine, name)
        if name != "context_tokens" and seen != wanted:
            raise CostTableError(
                f"The cost table must be measured with {name} {wanted}, got {seen} ({path}).", hint=_MEASURE
            )
    return table, digest


def check_rank_hashes(hash_by_rank: Mapping[int, str]) -> None:
    """Refuses ranks whose tables differ:
    they would verify different widths and hang in the next collective."""
    reference = hash_by_rank[min(hash_by_rank)]
    others = sorted(rank for rank, digest in hash_by_rank.items() if digest != reference)
    if others:
        raise CostTableError(
            f"The cost table must be the same on every rank, "
            f"got {hash_by_rank[others[0]]} on rank {others[0]} "
            f"and {reference} on rank {min(hash_by_rank)} (ranks that differ: {others}).",
            hint="copy one table to all nodes",
        )
