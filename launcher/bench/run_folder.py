"""The directory of a run while it grows. Each line is complete on disk before the next begins, so that
kill -9 leaves what was measured; a line cut off by it is removed when the run is resumed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from launcher.bench.settings import BenchSettings
from launcher.errors import UsageError
from launcher.frozen_model import FrozenModel
from launcher.results.manifest import MANIFEST_NAME
from launcher.results.run_directory import ENGINE, RAW_FILES, REQUESTS
from launcher.write_file import write_file

SETTINGS_NAME = "settings.json"
DETAILS = "answer_details.jsonl"  # what other protocols' reports need beside the records


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """`started_unix` is the zero of every time in the records. Without a manifest the run is unfinished."""

    path: Path
    settings: BenchSettings
    started_unix: float

    @classmethod
    def create(cls, path: Path, settings: BenchSettings) -> Self:
        """Raises UsageError when something is there already."""
        if os.path.lexists(path):
            raise UsageError(
                f"--output must be a new directory, got {path}",
                hint=f"continue that run: sparkctl bench --resume {path}",
            )
        folder = cls(path=path, settings=settings, started_unix=time.time())
        try:
            path.mkdir(parents=True)
            for name in RAW_FILES:
                (path / name).touch()
            folder._write_settings(None)
        except OSError as error:
            raise UsageError(f"--output must be writable, got {error}") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Of an earlier run; a finished one stays finished until `begin_on`. Raises UsageError."""
        try:
            value = json.loads((path / SETTINGS_NAME).read_text())
            settings = BenchSettings.model_validate(value["settings"])
            started = float(value["started_unix"])
            if not isinstance(value.get("cluster", {}), dict):
                raise TypeError("cluster must be a mapping")
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--resume must name a directory that `sparkctl bench` made, got {path}: {error}"
            ) from error
        folder = cls(path=path, settings=settings, started_unix=started)
        for name in (*RAW_FILES, DETAILS):
            _cut_torn_line(path / name)
        return folder

    def begin_on(self, cluster: Mapping[str, str | None] | None) -> None:
        """`cluster`: what is measured, by hash; None where that is not compared. A resumed run goes on with
        what it began on, or its manifest would name for all records what only the last of them came from.
        Raises UsageError; only what passed is unfinished from now on, a refused run stays as it was.
        """
        began = self._began_on()
        for name, wanted in (began or {}).items():
            seen = (cluster or {}).get(name)
            if seen != wanted:
                begun, got = ((value or "none")[:12] for value in (wanted, seen))
                raise UsageError(
                    f"--resume must go on with the {name} that the run began with ({begun}), got {got}",
                    hint="start the cluster from that, or measure anew: sparkctl bench",
                )
        (self.path / MANIFEST_NAME).unlink(missing_ok=True)
        self._write_settings(cluster if began is None else began)

    def _began_on(self) -> dict[str, str | None] | None:
        path = self.path / SETTINGS_NAME
        if not path.exists():
            return None
        began: dict[str, str | None] | None = json.loads(path.read_text()).get("cluster")
        return began

    def _write_settings(self, cluster: Mapping[str, str | None] | None) -> None:
        value = {"started_unix": self.started_unix, "settings": self.settings.model_dump(mode="json")}
        if cluster is not None:
            value["cluster"] = dict(cluster)
        write_file(self.path / SETTINGS_NAME, json.dumps(value, indent=1) + "\n")

    def origin_s(self) -> float:
        """The run's start on this process's monotonic clock."""
        return time.monotonic() - max(0.0, time.time() - self.started_unix)

    def append(self, name: str, record: FrozenModel) -> None:
        with (self.path / name).open("ab") as file:
            file.write(record.model_dump_json().encode() + b"\n")

    def append_details(self, request_id: str, details: dict[str, Any]) -> None:
        with (self.path / DETAILS).open("a") as file:
            file.write(json.dumps({"request_id": request_id, **details}) + "\n")

    def details(self) -> dict[str, dict[str, Any]]:
        return {item["request_id"]: item for item in map(json.loads, self._lines(DETAILS))}

    def sync(self) -> None:
        """After each wave: a power cut loses one wave at most."""
        for name in RAW_FILES:
            if (self.path / name).exists():
                with (self.path / name).open("rb") as file:
                    os.fsync(file.fileno())

    def drop_wave(self, key: tuple[str, str, int, int], request_prefix: str) -> None:
        """Remove the records of a wave that an interrupted run left half done:
        it is sent again as a whole.
        """
        for name in (REQUESTS, DETAILS):
            self._keep_only(name, lambda item: not item["request_id"].startswith(request_prefix))
        suite, case, concurrency, round_idx = key
        wanted = {"suite": suite, "case": case, "concurrency": concurrency, "round": round_idx}
        self._keep_only(ENGINE, lambda item: any(item[name] != wanted[name] for name in wanted))

    def _keep_only(self, name: str, keep: Any) -> None:
        lines = self._lines(name)
        kept = [line for line in lines if keep(json.loads(line))]
        if len(kept) != len(lines):
            write_file(self.path / name, b"".join(line + b"\n" for line in kept).decode())

    def _lines(self, name: str) -> list[bytes]:
        path = self.path / name
        return path.read_bytes().splitlines() if path.exists() else []


def _cut_torn_line(path: Path) -> None:
    """What kill -9 left of a line. A whole line that is no record is for read_records to refuse."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data:
        write_file(path, whole.decode())
