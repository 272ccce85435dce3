"""The lock that the cluster was started from, kept in the run's directory: who repeats the run needs it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from launcher.registry.check_tree import MAX_LOCK_BYTES
from launcher.results.run_directory import LOCK
from launcher.run_record import RunRecord, lock_in_effect
from launcher.write_file import write_file


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLock:
    """`sha256` is None without a lock, and where `up` was told to start whatever differed from it."""

    sha256: str | None = None
    notes: tuple[str, ...] = ()


def keep_lock(record: RunRecord | None, directory: Path) -> KeptLock:
    """Writes lock.yaml. A lock that was changed or removed since the start is named by its hash only."""
    (directory / LOCK).unlink(missing_ok=True)
    if record is None or record.plan.lock is None:
        return KeptLock()
    lock = lock_in_effect(record)
    if lock is None:
        return KeptLock(notes=("started with --unlocked: nothing was compared with the recipe's lock",))
    try:
        with Path(lock.file).open("rb") as file:
            content = file.read(MAX_LOCK_BYTES)
    except OSError:
        content = b""
    if hashlib.sha256(content).hexdigest() != lock.sha256:
        return KeptLock(
            sha256=lock.sha256, notes=("the lock is no longer the one at the start: no copy here",)
        )
    write_file(directory / LOCK, content.decode())
    return KeptLock(sha256=lock.sha256)
