"""All runs of this machine, followed: open ones in full, ended ones as their records tell."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

from launcher.connect import SshOptions
from launcher.dashboard.page_state import page_state
from launcher.dashboard.run_facts import Moment, State
from launcher.dashboard.watch_run import RunWatch
from launcher.run_record import RunRecord, RunRecords

PERIOD_S = 1.0
NUM_ENDED = 5


class Collector:
    """`state` is what the page asks for. `run_id`: follow this one only."""

    def __init__(self, records: RunRecords, options: SshOptions, *, run_id: str | None = None,
                 probes: bool = True, clock: Callable[[], float] = time.monotonic) -> None:  # fmt: skip
        self._records = records
        self._options = options
        self._run_id = run_id
        self._probes = probes
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._watches: dict[str, RunWatch] = {}
        self._keys: set[str] = set()
        self._ended: tuple[RunRecord, ...] = ()
        self._unreadable: dict[str, str] = {}
        self._seen: dict[str, int] | None = None

    def open(self) -> None:
        self._look()
        threading.Thread(target=self._keep_looking, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        with self._lock:
            for watch in self._watches.values():
                watch.close()

    def state(self) -> State:
        with self._lock:
            moment = Moment(
                now_s=self._clock(),
                now_unix=time.time(),
                open_runs=tuple(watch.now() for _, watch in sorted(self._watches.items(), reverse=True)),
                ended=self._ended,
                unreadable=dict(self._unreadable),
            )
            keys = tuple(self._keys)
        return page_state(moment, keys)

    def _keep_looking(self) -> None:
        while not self._closing.wait(PERIOD_S):
            self._look()

    def _look(self) -> None:
        """Records come and go as other terminals type up and down."""
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        readable = [
            record
            for record in self._records.load_readable()
            if self._run_id in (None, record.run_id, record.plan.deployment) and not record.plan.is_router
        ]
        unreadable = {run_id: error.message for run_id, error in self._records.unreadable().items()}
        found = {record.run_id: record for record in readable if record.status in ("starting", "ready")}
        with self._lock:
            if self._closing.is_set():
                return
            for run_id in self._watches.keys() - found.keys():
                self._watches.pop(run_id).close()
            for run_id, record in found.items():
                if run_id in self._watches:
                    self._watches[run_id].update(record)
                else:
                    self._follow(record)
            self._ended = tuple(record for record in readable if record.run_id not in found)[:NUM_ENDED]
            self._unreadable = unreadable

    def _stamps(self) -> dict[str, int]:
        """Run id -> when its record was written: only a change is worth reading fifty records."""
        stamps = {}
        for run_id in self._records.run_ids():
            with suppress(FileNotFoundError):  # `up` removes the oldest
                stamps[run_id] = (self._records.root / run_id / "record.json").stat().st_mtime_ns
        return stamps

    def _follow(self, record: RunRecord) -> None:
        key = self._records.read_key(record.run_id)
        if key:
            self._keys.add(key)  # kept after the run has ended: its errors may still be on a screen
        watch = RunWatch(record, key, self._options, probes=self._probes, clock=self._clock)
        self._watches[record.run_id] = watch
        watch.open()
