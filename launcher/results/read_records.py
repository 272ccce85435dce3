"""The raw records of a run, each checked, none twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ResultWrong
from launcher.results.records import EngineSample, NodeSample, RequestRecord
from launcher.results.run_directory import ENGINE, NODES, REQUESTS, read_lines
from launcher.results.strict_json import Model, parse_model


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecords:
    requests: tuple[RequestRecord, ...]
    engine_samples: tuple[EngineSample, ...]
    node_samples: tuple[NodeSample, ...]


def read_records(directory: Path) -> RunRecords:
    """Raises ResultWrong with file and line."""
    requests = tuple(_read(RequestRecord, directory, REQUESTS))
    engine_samples = tuple(_read(EngineSample, directory, ENGINE))
    node_samples = tuple(_read(NodeSample, directory, NODES))
    _refuse_twice([record.request_id for record in requests], directory / REQUESTS, "request_id")
    _refuse_twice(
        [
            (item.protocol, item.suite, item.case, item.concurrency, item.round, item.warm_up, item.when)
            for item in engine_samples
        ],
        directory / ENGINE,
        "sample of one round",
    )
    _refuse_twice([(item.node, item.time_s) for item in node_samples], directory / NODES, "node and time")
    return RunRecords(requests=requests, engine_samples=engine_samples, node_samples=node_samples)


def _read(kind: type[Model], directory: Path, name: str) -> Iterator[Model]:
    for number, line in read_lines(directory, name):
        yield parse_model(kind, line, f"{directory / name} line {number}")


def _refuse_twice(keys: list[Hashable], path: Path, what: str) -> None:
    seen: set[Hashable] = set()
    for key in keys:
        if key in seen:
            raise ResultWrong(f"{path} must hold each {what} once, got {key!r} twice")
        seen.add(key)
