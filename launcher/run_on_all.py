"""Do the same on all nodes at once: one result or error for every node, grouped by reason for people."""

from __future__ import annotations

import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from launcher.errors import SparkctlError
from launcher.remote import Remote

T = TypeVar("T")
# Typical clusters have 2 to 4 nodes; more than this many threads would only wait for each other.
DEFAULT_MAX_PARALLEL = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Result(Generic[T]):
    """Outcome on one node: a value, or the error that stands for it."""

    value: T | None = None
    error: SparkctlError | None = None

    def unwrap(self) -> T:
        """The value; raises the error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # T itself may be None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasonGroup:
    """Nodes that failed for the same reason."""

    nodes: tuple[str, ...]
    message: str
    hints: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.nodes)}: {self.message}"


def run_on_all(
    remotes: Sequence[Remote], fn: Callable[[Remote], T], *, max_parallel: int = DEFAULT_MAX_PARALLEL
) -> dict[str, Result[T]]:
    """Call `fn` for every remote in threads; returns when all are done, in the order of `remotes`.

    Node names must differ. On KeyboardInterrupt what has not started never starts, and the interrupt is
    raised at once; what runs ends by itself, in daemon threads that do not keep the process alive.
    """
    names = [remote.node for remote in remotes]
    assert len(set(names)) == len(names), f"duplicate node names: {names}"
    assert max_parallel > 0
    work: queue.SimpleQueue[Remote] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[str, Result[T]]] = queue.SimpleQueue()
    stop = threading.Event()
    for remote in remotes:
        work.put(remote)

    def take_work() -> None:
        while not stop.is_set():
            try:
                remote = work.get_nowait()
            except queue.Empty:
                return
            done.put((remote.node, _call(fn, remote)))

    try:  # starting threads can be interrupted too
        for _ in range(min(max_parallel, len(remotes))):
            threading.Thread(target=take_work, name="run-on-all", daemon=True).start()
        found = dict(_next(done) for _ in remotes)
    finally:
        stop.set()
    return {name: found[name] for name in names}


def errors_of(results: Mapping[str, Result[T]]) -> dict[str, SparkctlError]:
    """Node -> error, of the nodes that failed."""
    return {node: result.error for node, result in results.items() if result.error is not None}


def group_by_reason(errors: Mapping[str, SparkctlError]) -> list[ReasonGroup]:
    """One group per reason, in the order of first sight; the trailing "(where)" of messages is joined."""
    groups: dict[tuple[type, str], list[tuple[str, str, str]]] = {}
    for node, error in errors.items():
        reason, where = _split_where(error.message)
        groups.setdefault((type(error), reason), []).append((node, where, error.hint))
    return [_make_group(reason, members) for (_, reason), members in groups.items()]


def _make_group(reason: str, members: list[tuple[str, str, str]]) -> ReasonGroup:
    places = list(dict.fromkeys(where for _, where, _ in members if where))
    message = f"{reason} ({', '.join(places)})." if places else reason
    return ReasonGroup(
        nodes=tuple(node for node, _, _ in members),
        message=message,
        hints=tuple(dict.fromkeys(hint for _, _, hint in members if hint)),
    )


def _split_where(message: str) -> tuple[str, str]:
    parts = re.fullmatch(r"(?s)(.*) \(([^()]*)\)\.?", message)
    return (parts[1], parts[2]) if parts else (message, "")


def _next(done: queue.SimpleQueue[tuple[str, Result[T]]]) -> tuple[str, Result[T]]:
    while True:
        try:
            return done.get(timeout=0.2)  # short, so that an interrupt is seen even if it woke another thread
        except queue.Empty:
            continue


def _call(fn: Callable[[Remote], T], remote: Remote) -> Result[T]:
    try:
        return Result(value=fn(remote))
    except SparkctlError as error:
        error.node = error.node or remote.node
        return Result(error=error)
    except Exception as error:  # noqa: BLE001  # thread edge: a bug on one node must not hide the others
        bug = SparkctlError(f"unexpected {type(error).__name__}: {error}", node=remote.node)
        bug.__cause__ = error
        return Result(error=bug)
