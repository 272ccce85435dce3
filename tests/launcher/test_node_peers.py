"""The supervisors' line to each other: only the run's own peers count, and silence is an end."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from launcher.node import peers as peers_module
from launcher.node.peers import MAX_LINE_BYTES, Peers

TOKEN = "0123456789abcdef"
TIMEOUT_S = 2.0
LONGER_S = 2.6  # than the time-out
OPEN: list[Peers] = []


@pytest.fixture(autouse=True)
def close_all() -> Iterator[None]:
    """Every thread of this module's peers has ended, and closed its socket, before the next test."""
    before = set(threading.enumerate())
    yield
    while OPEN:
        OPEN.pop().close()
    for thread in set(threading.enumerate()) - before:
        thread.join(6)


@pytest.fixture(autouse=True)
def quick_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "BEAT_S", 0.2)
    monkeypatch.setattr(peers_module, "QUIET_S", 0.5)
    monkeypatch.setattr(peers_module, "HELLO_TIMEOUT_S", 0.5)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def make(node: str, port: int, *, head: bool = False, token: str = TOKEN, workers: int = 1,
         meeting_s: float = 20.0) -> Peers:  # fmt: skip
    peers = Peers(node=node, token=token, is_head=head, address="127.0.0.1", port=port, num_workers=workers,
                  timeout_s=TIMEOUT_S, meeting_s=meeting_s)  # fmt: skip
    OPEN.append(peers)
    return peers


def next_event(peers: Peers, timeout_s: float = 30.0) -> tuple[str, str, dict[str, object]]:
    return peers.events.get(timeout=timeout_s)


def assert_no_event(peers: Peers, for_s: float) -> None:
    with pytest.raises(queue.Empty):
        raise AssertionError(peers.events.get(timeout=for_s))


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def head(port: int) -> Peers:
    return make("node-0", port, head=True)


def stranger(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def send_hello(link: socket.socket, **message: object) -> None:
    link.sendall(json.dumps(message).encode() + b"\n")


def is_closed(link: socket.socket) -> bool:
    link.settimeout(30)
    try:
        while link.recv(100):
            pass
    except ConnectionError:
        pass
    return True


def test_peers_meet_and_beat(head: Peers, port: int) -> None:
    worker = make("node-1", port)
    assert next_event(head)[:2] == ("joined", "node-1")
    assert next_event(worker)[:2] == ("joined", "head")
    assert_no_event(head, LONGER_S)  # beats keep both content for longer than the time-out
    assert worker.events.empty() and head.quiet() == worker.quiet() == []


def test_an_end_is_told_with_its_kind(head: Peers, port: int) -> None:
    worker = make("node-1", port)
    next_event(head), next_event(worker)
    worker.tell_ended({"kind": "rank", "what": "scheduler ended"})
    kind, node, detail = next_event(head)
    assert (kind, node, detail["kind"], detail["what"]) == ("ended", "node-1", "rank", "scheduler ended")


def test_a_worker_that_starts_before_the_head_waits_for_it(port: int) -> None:
    worker = make("node-1", port)
    time.sleep(0.6)
    head = make("node-0", port, head=True)
    assert next_event(worker)[:2] == ("joined", "head")
    assert next_event(head)[:2] == ("joined", "node-1")


def test_a_slow_worker_has_longer_than_a_beat(port: int) -> None:
    head = make("node-0", port, head=True, meeting_s=20)
    assert_no_event(head, LONGER_S)
    make("node-1", port)
    assert next_event(head)[0] == "joined"


def test_a_worker_that_never_comes(port: int) -> None:
    head = make("node-0", port, head=True, workers=2, meeting_s=1.2)
    with stranger(port) as link:
        send_hello(link, hello="node-1", token=TOKEN)
        assert next_event(head)[:2] == ("joined", "node-1")
        for _ in range(20):  # it lives on: only the other one is missing
            link.sendall(b"{}\n")
            if not head.events.empty():
                break
            time.sleep(0.2)
    kind, peer, detail = next_event(head)
    assert (kind, peer) == ("silent", "workers") and "1 of 2 workers did not reach" in str(detail["what"])


def test_a_head_that_never_comes(port: int) -> None:
    worker = make("node-1", port, meeting_s=TIMEOUT_S)
    kind, peer, detail = next_event(worker)
    assert (kind, peer) == ("silent", "head")
    assert f"127.0.0.1:{port} in 2 s was not reached" in str(detail["what"])


@pytest.mark.parametrize(
    "first",
    [
        json.dumps({"hello": "node-1", "token": "wrong"}).encode() + b"\n",
        json.dumps({"hello": "node-1", "token": "\u00e9\u00e9"}).encode() + b"\n",
        json.dumps({"hello": "node-1"}).encode() + b"\n",
        json.dumps({"token": TOKEN}).encode() + b"\n",
        json.dumps({"hello": ["x"], "token": TOKEN}).encode() + b"\n",
        json.dumps({"ended": {"node": "node-0"}}).encode() + b"\n",
        b"[1]\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xfe\x00\n",
        b"[" * 60_000 + b"\n",
        b"x" * (MAX_LINE_BYTES + 4096),
        b"",
    ],
)
def test_a_stranger_changes_nothing(head: Peers, port: int, first: bytes) -> None:
    with stranger(port) as link:
        link.sendall(first)
        assert is_closed(link)
    make("node-1", port)
    assert next_event(head)[:2] == ("joined", "node-1")


def test_strangers_that_say_nothing_do_not_keep_the_worker_out(head: Peers, port: int) -> None:
    links = [stranger(port) for _ in range(40)]
    make("node-1", port)
    assert next_event(head)[:2] == ("joined", "node-1")
    for link in links:
        link.close()


def test_a_worker_that_is_sent_away_comes_again(port: int) -> None:
    with socket.create_server(("127.0.0.1", port)) as busy:
        worker = make("node-1", port)
        link, _ = busy.accept()
        link.close()
    assert_no_event(worker, 0.2)  # neither joined nor ended
    head = make("node-0", port, head=True)
    assert next_event(worker)[:2] == ("joined", "head")
    assert next_event(head)[:2] == ("joined", "node-1")


def test_half_open_a_peer_that_falls_silent(head: Peers, port: int) -> None:
    with stranger(port) as link:
        send_hello(link, hello="node-1", token=TOKEN)
        next_event(head)
        started = time.monotonic()
        while head.quiet() != ["node-1"]:
            assert time.monotonic() - started < TIMEOUT_S, "quiet is told before it counts as an end"
            time.sleep(0.02)
        kind, peer, detail = next_event(head)
        assert (kind, peer) == ("silent", "node-1") and "no sign of life for 2 s" in str(detail["what"])
        assert time.monotonic() - started > 0.8 * TIMEOUT_S


@pytest.mark.parametrize(("garbage", "why"), [(b"\xff\n", "no message"), (b"7\n", "no message"),
                                              (b"y" * (MAX_LINE_BYTES + 9), "too long")])  # fmt: skip
def test_a_peer_that_talks_garbage(head: Peers, port: int, garbage: bytes, why: str) -> None:
    with stranger(port) as link:
        send_hello(link, hello="node-1", token=TOKEN)
        next_event(head)
        link.sendall(garbage)
        kind, peer, detail = next_event(head)
        assert (kind, peer) == ("silent", "node-1") and why in str(detail["what"])


def test_a_peer_whose_supervisor_was_killed_is_noticed_at_once(head: Peers, port: int) -> None:
    link = stranger(port)
    send_hello(link, hello="node-1", token=TOKEN)
    next_event(head)
    link.close()
    kind, peer, detail = next_event(head)
    assert (kind, peer) == ("silent", "node-1")
    assert "ended without a word" in str(detail["what"]) or "broke" in str(detail["what"])


def test_messages_cut_at_any_byte(head: Peers, port: int) -> None:
    with stranger(port) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        text = (
            json.dumps({"hello": "node-1", "token": TOKEN}) + "\n{}\n" + json.dumps({"ended": {"what": "x"}})
        )
        for byte in text.encode() + b"\n":
            link.sendall(bytes([byte]))
        assert next_event(head)[:2] == ("joined", "node-1")
        assert next_event(head)[:2] == ("ended", "node-1")


def test_a_port_that_is_taken_is_an_error_at_once(head: Peers, port: int) -> None:
    with pytest.raises(OSError, match="in use"):
        make("node-0", port, head=True)
