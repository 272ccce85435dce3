"""Only a regular file is opened: opening a FIFO would wait for a writer that never comes."""

import stat
from pathlib import Path

from engram.errors import TableFormatError

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
    stat.S_IFDIR: "a folder",
}


def refuse_special_file(path: Path) -> None:
    """Raises TableFormatError; a path that cannot be looked at is left to open(), which names it."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode):
        raise TableFormatError(
            f"{path.name} must be a regular file, got {_KINDS.get(stat.S_IFMT(mode), 'none')} ({path}).",
            hint="remove it and pack the tables into this folder: sparkctl engram pack",
        )
