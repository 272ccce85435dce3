"""What this machine started: one directory a run, so that another terminal, or the same one after a reboot,
finds it again.

    <state>/control/<run_id>/record.json   plan, start time, timings, how it ended (replaced atomically)
    <state>/control/<run_id>/api.key       the API key, mode 0600, only when the API needs one
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launcher.errors import ConfigError, NoSuchRun, UsageError
from launcher.node.run_dir import write_file
from launcher.plan import LaunchPlan, LockPlan, NodePlan, plan_from_json, plan_to_json
from launcher.plan_rules import is_run_id
from launcher.preflight import LOCK_CHECK

KEEP_RECORDS = 50
STATUSES = ("starting", "ready", "failed", "stopped")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """`status`: starting, ready, failed, stopped. `timings`: seconds from the start of `up`."""

    plan: LaunchPlan
    status: str
    started_unix: float
    timings: dict[str, float]
    note: str = ""
    skipped_checks: tuple[str, ...] = ()

    @property
    def run_id(self) -> str:
        return self.plan.run_id


def lock_in_effect(record: RunRecord) -> LockPlan | None:
    """The lock that the nodes were compared with; None when `up` was told not to."""
    return None if LOCK_CHECK in record.skipped_checks else record.plan.lock


def _place(node: NodePlan) -> tuple[str, str, str]:
    """What makes two records mean the same node."""
    return node.node.connection, node.node.ssh.host or node.name, node.state_path


def control_root() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local/state")
    if not Path(base).is_absolute():
        # Each directory would have runs of its own, which `down` elsewhere never finds.
        raise ConfigError(
            f"XDG_STATE_HOME must be an absolute path, got {base!r}",
            hint="unset XDG_STATE_HOME, or correct it",
        )
    return Path(base) / "sparkctl" / "control"


def router_first(records: Iterable[RunRecord]) -> list[RunRecord]:
    """The order of ending: a router that is asked after its groups would only find them dead."""
    return sorted(records, key=lambda record: not record.plan.is_router)


class RunRecords:
    """Reads and writes records under one root."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or control_root()

    def save(self, record: RunRecord) -> None:
        value = {
            "plan": json.loads(plan_to_json(record.plan)),
            "status": record.status,
            "started_unix": record.started_unix,
            "timings": record.timings,
            "note": record.note,
            "skipped_checks": list(record.skipped_checks),
        }
        self._write(self.root / record.run_id / "record.json", json.dumps(value, indent=1).encode())

    def _write(self, path: Path, content: bytes) -> None:
        """For its user only. Raises ConfigError where that is not possible."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_file(path, content, 0o600)
        except OSError as error:
            raise ConfigError(
                f"this machine's own state directory must be writable, got: {error.strerror} ({path.parent})",
                hint=f"make room or give access there, or set XDG_STATE_HOME; look at: df {self.root}",
            ) from error

    def update(self, record: RunRecord, **changes: Any) -> RunRecord:
        changed = replace(record, **changes)
        self.save(changed)
        return changed

    def load(self, run_id: str) -> RunRecord:
        """Raises NoSuchRun, naming the runs there are."""
        path = self.root / run_id / "record.json"
        if not is_run_id(run_id) or not path.is_file():
            known = ", ".join(self.run_ids()[:3]) or "none"
            raise NoSuchRun(
                f"there must be a run {run_id[:80] or repr(run_id)}, this machine has {known}",
                hint="sparkctl status --all",
            )
        try:
            value = json.loads(path.read_text())
            plan = plan_from_json(json.dumps(value["plan"]), source=str(path))
            # A copied directory must not make `down --run A` end B.
            if plan.run_id != run_id or value["status"] not in STATUSES:
                raise ValueError(f"run {plan.run_id}, status {value['status']}")
            return RunRecord(
                plan=plan,
                status=value["status"],
                started_unix=value["started_unix"],
                timings=value["timings"],
                note=value["note"],
                skipped_checks=tuple(value["skipped_checks"]),
            )
        except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
            raise ConfigError(
                f"the record of run {run_id} must be one that this version wrote, got: {error}",
                hint=f"if nothing of it runs any more, remove {path.parent}",
            ) from error

    def load_readable(self) -> list[RunRecord]:
        """Newest first. A record of another version must not stand in the way of the others."""
        found = []
        for run_id in self.run_ids():
            with suppress(ConfigError):
                found.append(self.load(run_id))
        return found

    def unreadable(self) -> dict[str, ConfigError]:
        """Run id -> what is wrong with its record."""
        found = {}
        for run_id in self.run_ids():
            try:
                self.load(run_id)
            except ConfigError as error:
                found[run_id] = error
        return found

    def run_ids(self) -> list[str]:
        """Newest first: ids begin with their time."""
        if not self.root.is_dir():
            return []
        return sorted(
            (path.name for path in self.root.iterdir() if (path / "record.json").is_file()), reverse=True
        )

    def open_records(self) -> list[RunRecord]:
        """Runs that nobody has seen end, newest first."""
        return [record for record in self.load_readable() if record.status in ("starting", "ready")]

    def choose(self, run_id: str | None) -> RunRecord:
        """The named run, or the only open one, or the newest. Raises NoSuchRun or UsageError."""
        chosen = self.choose_all(run_id)
        if len(chosen) > 1:
            listed = ", ".join(record.run_id for record in chosen)
            raise UsageError(
                f"one run must be chosen, {chosen[0].plan.deployment} has {len(chosen)}: {listed}",
                hint=f"add --run {chosen[0].run_id}",
            )
        return chosen[0]

    def choose_all(self, run_id: str | None) -> list[RunRecord]:
        """The runs of what was started by one command: one, or those of the groups, then the router's. A
        deployment is named by its id, or a run of it by its own. Raises NoSuchRun or UsageError.
        """
        if run_id is not None:  # an empty one is a shell variable that nobody set: never "any run"
            return self._of_deployment(run_id) or [self.load(run_id)]
        still_open = self.open_records()
        several = sorted({record.plan.deployment or record.run_id for record in still_open}, reverse=True)
        if len(several) > 1:
            raise UsageError(
                f"one run must be chosen, {len(several)} are open: {', '.join(several)}",
                hint="add --run RUN_ID",
            )
        newest = still_open or self.load_readable()
        if not newest:
            for error in self.unreadable().values():
                raise error
            raise NoSuchRun("no run was started from this machine", hint="sparkctl up --nodes 3")
        return self._of_deployment(newest[0].plan.deployment) or [newest[0]]

    def _of_deployment(self, deployment: str | None) -> list[RunRecord]:
        """Groups in order, then the router: none where there is no such deployment."""
        if not deployment:
            return []
        found = [record for record in self.load_readable() if record.plan.deployment == deployment]
        return sorted(found, key=lambda record: (record.plan.is_router, record.run_id))

    def key_path(self, run_id: str) -> Path:
        return self.root / run_id / "api.key"

    def make_key(self, run_id: str) -> str:
        """A new API key, kept for its user only (0600)."""
        key = "sk-" + secrets.token_urlsafe(32)
        self._write(self.key_path(run_id), key.encode() + b"\n")
        return key

    def read_key(self, run_id: str) -> str | None:
        path = self.key_path(run_id)
        return path.read_text().strip() if path.is_file() else None

    def forget_key(self, run_id: str) -> None:
        """For a run that is known to have ended on every node."""
        self.key_path(run_id).unlink(missing_ok=True)

    def close_superseded(self, plan: LaunchPlan) -> None:
        """A node holds one run: open records of other runs on any of these nodes are over."""
        places = {_place(node) for node in plan.nodes}
        for record in self.open_records():
            if record.run_id != plan.run_id and places & {_place(node) for node in record.plan.nodes}:
                self.update(record, status="stopped", note=f"over when run {plan.run_id} started")

    def remove_old(self) -> None:
        """Keep the newest records; only ended runs go."""
        for record in self.load_readable()[KEEP_RECORDS:]:
            if record.status not in ("starting", "ready"):
                shutil.rmtree(self.root / record.run_id)
