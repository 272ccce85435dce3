"""One start or stop at a time on a node."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def node_lock(state_path: str) -> Iterator[None]:
    """Released by the kernel when this process ends, however it ends."""
    root = Path(state_path).expanduser()
    root.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (root / "node.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
