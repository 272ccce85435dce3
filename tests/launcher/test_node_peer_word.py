"""Status 0 names no cause: SGLang's scheduler returns after any exception, also of a peer that went away."""

from __future__ import annotations

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.node import supervise
from launcher.node.supervise import Supervisor

FOLLOWED = {"kind": "rank", "what": "sglang::scheduler_TP1 ended", "pid": 11, "exit_code": 0}
ENDED = ("ended", "node-0", {"kind": "rank", "what": "sglang::scheduler_TP0 ended"})


def supervisor_that_saw(end: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Its own rank ended so; what its peers tell is put into `events`."""
    supervisor: Any = object.__new__(Supervisor)
    supervisor.asked_to_stop = False
    supervisor.peers = SimpleNamespace(events=queue.Queue())
    monkeypatch.setattr(Supervisor, "_engine_or_child_end", lambda self: end)
    return supervisor


def test_a_rank_that_followed_its_peer_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The peer tells its end after it has found out how its main process ended: later than ours is seen."""
    monkeypatch.setattr(supervise, "PEER_WORD_S", 30.0)
    supervisor = supervisor_that_saw(FOLLOWED, monkeypatch)
    threading.Timer(0.2, supervisor.peers.events.put, [ENDED]).start()
    end = supervisor._own_end()
    assert (end["kind"], end["peer"]) == ("peer", "node-0")
    assert "sglang::scheduler_TP0 ended" in end["what"]


def test_a_rank_that_ended_alone_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "PEER_WORD_S", 0.05)
    assert supervisor_that_saw(FOLLOWED, monkeypatch)._own_end() == FOLLOWED


@pytest.mark.parametrize("how", [{"exit_code": 1}, {"signal": 9}, {}])
def test_a_rank_that_failed_waits_for_nobody(how: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    end = {"kind": "rank", "what": "sglang::scheduler_TP1 ended", **how}
    supervisor = supervisor_that_saw(end, monkeypatch)
    supervisor.peers.events.put(ENDED)
    assert supervisor._own_end() == end
