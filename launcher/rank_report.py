"""What a rank says that it runs with (`sgl_ext` writes it, a node's code reads it), typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

SCHEMA_VERSION = 1


class _Reported(BaseModel):
    """It comes from another machine: a key that is new is fine, one that is missing or wrong is not."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class HookReport(_Reported):
    target: str
    kind: str
    fingerprint: str
    in_effect: bool


class SettingsReport(_Reported):
    cpu_engine: bool
    engram_dir: str | None
    fork_children: bool


class SpeculationReport(_Reported):
    """`table_hash`: of the cost table that widths are decided from, or "untuned"."""

    table_hash: str


class DetailsReport(_Reported):
    """`environment`: SGLang's, NCCL's and sparkctl's variables as the rank's process had them. `speculation`:
    None where SGLang decides the widths."""

    environment: dict[str, str]
    speculation: SpeculationReport | None = None


class RankReport(_Reported):
    """`server_args`: as given; `resolved`: what SGLang decided of these, being open or unable to stand."""

    schema_version: int
    rank: int
    hook_sets: tuple[str, ...]
    hooks: tuple[HookReport, ...]
    versions: dict[str, str | None]
    settings: SettingsReport
    server_args: dict[str, Any]
    resolved: dict[str, Any]
    details: DetailsReport

    def effective(self, name: str) -> Any:
        """What SGLang runs with: its decision where it took one, else the argument as it was given."""
        return self.resolved.get(name, self.server_args.get(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReports:
    """All that one node has of a run. `problems`: file -> why it is no report, or what was refused."""

    by_rank: Mapping[int, RankReport]
    problems: Mapping[str, str]


def parse_reports(answer: Mapping[str, Any]) -> NodeReports:
    """Never raises: a file that is no report is a problem of its node."""
    by_rank: dict[int, RankReport] = {}
    problems: dict[str, str] = {name: f"is damaged: {why}" for name, why in answer["damaged"].items()}
    for name, value in answer["refusals"].items():
        problems[name] = f"is a refusal: {value.get('message', value)}"
    for name, value in answer["reports"].items():
        try:
            report = RankReport.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            problems[name] = f"is no report: {'.'.join(map(str, first['loc']))}: {first['msg']}"
            continue
        if report.schema_version != SCHEMA_VERSION or name != f"rank-{report.rank:02d}.json":
            problems[name] = (
                f"must be the report of schema {SCHEMA_VERSION} that its name says, got rank {report.rank}"
                f" of schema {report.schema_version}"
            )
        else:
            by_rank[report.rank] = report
    return NodeReports(by_rank=by_rank, problems=problems)
