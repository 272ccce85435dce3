"""Replace a small file so that a reader, or a crash, sees the old content or the new one, never half."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from launcher.errors import UsageError


def write_file(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Temporary file beside it, fsync, rename, fsync of the directory. Raises UsageError.

    A device, pipe or directory is refused: the rename would put a file in its place.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} must be a regular file, or none yet.", hint="give the output another name")
    temporary = ""
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
        directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        if temporary:
            Path(temporary).unlink(missing_ok=True)
        raise UsageError(
            f"{path} must be writable, got: {error.strerror}.",
            hint=f"give the output another name, or look at: ls -ld {path.parent}; df {path.parent}",
        ) from error
