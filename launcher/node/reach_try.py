"""The asking half of the reachability probe: TCP and UDP to every other node, and a hello on every cable.

Needs no privilege and no tool: full frames go out as UDP packets that must not be fragmented.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

# One lost SYN is sent again after 1 s: shorter would call a busy network broken.
CONNECT_TIMEOUT_S = 1.6
# A busy node answers late now and then: a slow answer is asked for again, and the quickest counts.
ROUND_TRIPS, ROUND_PAUSE_S, SLOW_S = 5, 0.005, 0.005
UDP_TRIES = (0.25, 0.35, 0.5)
IP_MTU_DISCOVER, IP_PMTUDISC_PROBE = 10, 3
UDP_HEADERS_BYTES = 28
NO_ANSWER = "no answer"

Ask = Callable[[], tuple[str, float]]  # error text, empty when it answered; seconds of a round trip
Job = tuple[str, str, int, int, Ask]  # kind, address, port, bytes, how


def reach_try(
    *, node: str, token: str, source: str, targets: list[Any], hello: dict[str, Any]
) -> dict[str, Any]:
    """`targets`: [{name, tcp: [address, port], ports: [[address, port]], udp: [[own, address, port, mtu]]}].

    `hello`: {port, interfaces}. Answers {"attempts": [...], "hello_problems": {interface: why}}.
    """
    attempts: list[dict[str, Any]] = []  # append is safe from several threads
    problems = _say_hello(node, token, hello)
    threads = [
        threading.Thread(target=_attempt, args=(attempts, target["name"], *job))
        for target in targets
        for job in _jobs(node, token, source, target)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"attempts": attempts, "hello_problems": problems}


def _jobs(node: str, token: str, source: str, target: dict[str, Any]) -> Iterator[Job]:
    """What is tried with one other node."""
    if target["tcp"]:
        address, port = target["tcp"]
        yield "tcp", address, port, 0, partial(_ask_tcp, source, address, port, token)
    for address, port in target["ports"]:
        yield "port", address, port, 0, partial(_ask_tcp, "", address, port, token)
    for own, address, port, mtu in target["udp"]:
        small, full = _packet(node, token, "udp"), _packet(node, token, "jumbo")
        yield "udp", address, port, 0, partial(_ask_udp, own, address, port, small, 0)
        size = mtu - UDP_HEADERS_BYTES
        if mtu:
            yield "jumbo", address, port, size, partial(_ask_udp, own, address, port, full, size)


def _attempt(
    attempts: list[dict[str, Any]], target: str, kind: str, address: str, port: int, size: int, ask: Ask
) -> None:
    try:
        error, seconds = ask()
        for _ in range(ROUND_TRIPS - 1):
            if error or seconds <= SLOW_S:
                break
            time.sleep(ROUND_PAUSE_S)
            again, next_s = ask()
            seconds = seconds if again else min(seconds, next_s)
    except OSError as failure:
        error, seconds = _words(failure), 0.0
    attempts.append({
        "target": target, "kind": kind, "address": address, "port": port, "size_bytes": size,
        "round_trip_s": None if error else seconds, "error": error,
    })  # fmt: skip


def _words(error: OSError) -> str:
    if isinstance(error, TimeoutError):
        return NO_ANSWER
    if error.errno == errno.EMSGSIZE:
        return "message too long for the port's own MTU"
    return os.strerror(error.errno) if error.errno else str(error)


def _packet(node: str, token: str, kind: str) -> bytes:
    return json.dumps({"token": token, "node": node, "kind": kind}).encode()


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _ask_tcp(source: str, address: str, port: int, token: str) -> tuple[str, float]:
    """Error text (empty when it answered) and the seconds of one round trip."""
    with socket.socket(_family(address), socket.SOCK_STREAM) as asking:
        asking.settimeout(CONNECT_TIMEOUT_S)
        asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if source:
            asking.bind((source, 0))
        asking.connect((address, port))
        started = time.monotonic()
        asking.sendall(token.encode() + b"\n")
        said = asking.recv(16)
        return (
            "" if said.startswith(b"here") else "something else listens there",
            time.monotonic() - started,
        )


def _ask_udp(source: str, address: str, port: int, packet: bytes, size: int) -> tuple[str, float]:
    """`size`: bytes of the packet, filled up with zeros, not to be fragmented; 0 leaves it short."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as asking:
        if size:
            asking.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
            packet = packet.ljust(size, b"\0")
        asking.bind((source, 0))
        asking.connect((address, port))
        for wait_s in UDP_TRIES:
            started = time.monotonic()
            asking.send(packet)
            asking.settimeout(wait_s)
            try:
                said = json.loads(asking.recv(2048))
            except TimeoutError:
                continue
            except ConnectionRefusedError:
                return "connection refused", 0.0
            if said.get("size") == len(packet):
                return "", time.monotonic() - started
        return NO_ANSWER, 0.0


def _say_hello(node: str, token: str, hello: dict[str, Any]) -> dict[str, Any]:
    """To everybody behind each interface: IPv6 needs no address there, IPv4 broadcast where IPv6 is off."""
    problems = {}
    for interface in hello["interfaces"]:
        data = json.dumps({"token": token, "node": node, "interface": interface}).encode()
        failures = []
        for send in (_hello_ipv6, _hello_ipv4):
            try:
                send(interface, hello["port"], data)
            except OSError as error:
                failures.append(_words(error))
        if len(failures) == 2:
            problems[interface] = failures[0]
    return problems


def _hello_ipv6(interface: str, port: int, data: bytes) -> None:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as saying:
        index = socket.if_nametoindex(interface)
        saying.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
        saying.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        for _ in range(2):
            saying.sendto(data, ("ff02::1", port, 0, index))


def _hello_ipv4(interface: str, port: int, data: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as saying:
        saying.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        saying.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
        for _ in range(2):
            saying.sendto(data, ("255.255.255.255", port))
