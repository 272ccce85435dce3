"""A lock by file, or by the name of one that comes with sparkctl."""

from __future__ import annotations

from pathlib import Path

from launcher.errors import UsageError

FOLDER = Path(__file__).parent


def shipped_locks() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in FOLDER.glob("*.txt")))


def read_lock_file(name: str) -> str:
    """The text. Raises UsageError when there is neither such a file nor such a name."""
    path = FOLDER / f"{name}.txt" if name in shipped_locks() else Path(name).expanduser()
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        seen = error.strerror if isinstance(error, OSError) else "no text"
        raise UsageError(
            f"--lock must be a readable file or a name, got {name!r}: {seen}",
            hint=f"names: {', '.join(shipped_locks())}",
        ) from error
