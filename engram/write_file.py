"""Small files written so that a crash leaves the old content or the new one, never half of it."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Temp + fsync + rename + fsync of the folder. Raises OSError.

    One writer at a time (packing holds its lock). The temp's name is fixed, so that the next write replaces
    what a killed one left.
    """
    temp = path.with_name(f".{path.name}.temp")
    try:
        with temp.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temp.replace(path)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes renames and new names in the folder survive a power cut."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
