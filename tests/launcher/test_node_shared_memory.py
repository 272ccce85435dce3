from __future__ import annotations

import os
from pathlib import Path

from launcher.node.end_processes import shared_memory_named_after


def test_files_are_known_by_the_pid_in_their_name() -> None:
    pid = os.getpid()
    mine = Path(f"/dev/shm/sgl_shm_nodecheck_{pid}_0da9e729")
    other = Path(f"/dev/shm/sgl_shm_nodecheck_1{pid}_0da9e729")
    try:
        mine.write_bytes(b"")
        other.write_bytes(b"")
        found = shared_memory_named_after({pid})
        assert mine.name in found
        assert other.name not in found
    finally:
        mine.unlink(missing_ok=True)
        other.unlink(missing_ok=True)
