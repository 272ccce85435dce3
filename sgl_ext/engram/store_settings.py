"""Settings of this rank's row store, from the environment that the launcher writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sgl_ext.errors import SettingError

_GIB = 1 << 30
_BACKENDS = ("io_uring", "threads", "ram")


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStoreSettings:
    """Sizes are upper bounds. queue_depth and lookahead_depth count reads in flight."""

    cache_bytes: int
    lookahead_bytes: int
    backend: str
    queue_depth: int
    lookahead_depth: int
    allow_buffered: bool
    read_threads: int  # that copy and wait for rows beside the driver's own host thread
    max_step_tokens: int  # tokens of the largest decode or verify step; sizes the pinned buffers

    def store_options(self) -> dict[str, object]:
        """Keyword arguments of engram.row_store.open_row_store."""
        return {
            "backend": self.backend,
            "cache_bytes": self.cache_bytes,
            "lookahead_budget_bytes": self.lookahead_bytes,
            "queue_depth": self.queue_depth,
            "lookahead_depth": self.lookahead_depth,
            "allow_buffered": self.allow_buffered,
        }


def read_store_settings(environment: Mapping[str, str]) -> RowStoreSettings:
    """Raises SettingError on a value that cannot be meant."""
    backend = environment.get("SPARKCTL_ENGRAM_BACKEND", "io_uring")
    if backend not in _BACKENDS:
        raise _wrong("SPARKCTL_ENGRAM_BACKEND", f"one of {', '.join(_BACKENDS)}", backend)
    in_ram = backend == "ram"
    return RowStoreSettings(
        cache_bytes=0 if in_ram else _gib(environment, "SPARKCTL_ENGRAM_CACHE_GIB", 4.0),
        lookahead_bytes=0 if in_ram else _gib(environment, "SPARKCTL_ENGRAM_LOOKAHEAD_GIB", 1.0),
        backend=backend,
        queue_depth=_count(environment, "SPARKCTL_ENGRAM_QUEUE_DEPTH", 128),
        lookahead_depth=_count(environment, "SPARKCTL_ENGRAM_LOOKAHEAD_DEPTH", 64),
        allow_buffered=_flag(environment, "SPARKCTL_ENGRAM_BUFFERED"),
        read_threads=_count(environment, "SPARKCTL_ENGRAM_READ_THREADS", 4),
        max_step_tokens=_count(environment, "SPARKCTL_ENGRAM_MAX_STEP_TOKENS", 2048),
    )


def _gib(environment: Mapping[str, str], name: str, default: float) -> int:
    text = environment.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        raise _wrong(name, "a number of GiB", text) from None
    if not 0 <= value < 4096:
        raise _wrong(name, "0 to 4096 GiB", text)
    return int(value * _GIB)


def _count(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    if text and not (text.isascii() and text.isdigit() and int(text) > 0):
        raise _wrong(name, "a whole number above 0", text)
    return int(text) if text else default


def _flag(environment: Mapping[str, str], name: str) -> bool:
    text = environment.get(name, "")
    if text not in ("", "0", "1"):
        raise _wrong(name, "0 or 1", text)
    return text == "1"


def _wrong(name: str, expected: str, seen: str) -> SettingError:
    return SettingError(f"{name} must be {expected}, got {seen!r} (environment).", hint=f"unset {name}")
