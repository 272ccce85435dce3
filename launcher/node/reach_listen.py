"""The listening half of the reachability probe: answers TCP and UDP, and tells which packets came to which
port.

Lives until the launcher hangs up, at most MAX_S. Sends nothing but answers; keeps nothing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import socket
import struct
import sys
import time
from typing import Any

from launcher.node.answer import answer

MAX_S = 30.0
IP_PKTINFO = 8  # Linux; Python 3.10 to 3.13 have no name for it


def reach_listen(*, token: str, addresses: list[Any], ports: list[Any], hello_port: int) -> None:
    """`addresses`: where this node is to be reached. `ports`: ports of the run that must be reachable, on
    the head.

    First line: {"tcp": {address: port}, "udp": {address: port}, "busy": [[port, reason], ...]}; then one
    {"hello": ...} or {"arrived": ...} a packet.
    """
    listeners, answerers, hellos, busy = [], [], [], []
    tcp, udp = {}, {}
    for address in addresses:
        try:
            listener, answerer = _tcp(address, 0), _udp(address, 0)
        except OSError as error:
            busy.append([0, f"{address}: {os.strerror(error.errno or 0)}"])
            continue
        tcp[address], udp[address] = listener.getsockname()[1], answerer.getsockname()[1]
        listeners.append(listener)
        answerers.append(answerer)
    for port in ports:
        try:
            listeners.append(_tcp("0.0.0.0", port))
        except OSError as error:
            busy.append([port, os.strerror(error.errno or 0)])
    for make in (_hello_ipv6, _hello_ipv4):
        try:
            hellos.append(make(hello_port))
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT):
                busy.append([hello_port, os.strerror(error.errno or 0)])
    answer({"tcp": tcp, "udp": udp, "busy": busy})
    _serve(token, listeners, answerers, hellos)


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _tcp(address: str, port: int) -> socket.socket:
    listener = socket.socket(_family(address), socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    listener.listen(64)
    listener.setblocking(False)
    return listener


def _udp(address: str, port: int) -> socket.socket:
    answerer = socket.socket(_family(address), socket.SOCK_DGRAM)
    answerer.bind((address, port))
    answerer.setblocking(False)
    return answerer


def _hello_ipv6(port: int) -> socket.socket:
    """All interfaces are members of ff02::1 by themselves, also those without an IPv4 address."""
    hearing = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    hearing.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    hearing.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
    hearing.bind(("::", port))
    hearing.setblocking(False)
    return hearing


def _hello_ipv4(port: int) -> socket.socket:
    hearing = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    hearing.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    hearing.bind(("0.0.0.0", port))
    hearing.setblocking(False)
    return hearing


def _serve(token: str, listeners: list[Any], answerers: list[Any], hellos: list[Any]) -> None:
    """Until end of file on stdin: the launcher has what it wanted, or is gone."""
    deadline = time.monotonic() + MAX_S
    connections: list[Any] = []
    told: set[Any] = set()
    while time.monotonic() < deadline:
        waiting = [sys.stdin, *listeners, *answerers, *hellos, *connections]
        readable, _, _ = select.select(waiting, [], [], 1.0)
        for item in readable:
            if item is sys.stdin:
                if not os.read(0, 4096):
                    return
            elif item in listeners:
                try:
                    connections.append(item.accept()[0])
                except OSError:  # it went away meanwhile
                    continue
            elif item in connections:
                if not _answer_tcp(item, token):
                    item.close()
                    connections.remove(item)
            elif item in answerers:
                _answer_udp(item, token, told)
            else:
                _hear(item, token, told)


def _answer_tcp(connection: socket.socket, token: str) -> bool:
    """False when the connection is done with:
    the other side closes first, so no port of ours is in TIME_WAIT."""
    connection.settimeout(1.0)
    try:
        if not connection.recv(256).startswith(token.encode()):
            return False
        connection.sendall(b"here\n")
    except OSError:
        return False
    return True


def _answer_udp(answerer: socket.socket, token: str, told: set[Any]) -> None:
    try:
        data, sender = answerer.recvfrom(65535)
    except OSError:
        return
    packet = _packet(data, token)
    if packet is None:
        return
    with contextlib.suppress(OSError):  # told below all the same: it did arrive
        answerer.sendto(json.dumps({"token": token, "size": len(data)}).encode(), sender)
    key = (packet["node"], packet.get("kind"), answerer.getsockname()[0])
    if key not in told:
        told.add(key)
        answer({"arrived": {"source": key[0], "kind": key[1], "address": key[2]}})


def _hear(hearing: socket.socket, token: str, told: set[Any]) -> None:
    try:
        data, controls, _, _ = hearing.recvmsg(2048, 256)
    except OSError:
        return
    packet = _packet(data, token)
    index = next((number for control in controls if (number := _interface_index(control))), 0)
    if packet is None or not index:
        return
    try:
        interface = socket.if_indextoname(index)
    except OSError:
        return
    key = (packet["node"], packet.get("interface"), interface)
    if key not in told:
        told.add(key)
        answer({"hello": {"source": key[0], "source_interface": key[1], "target_interface": interface}})


def _interface_index(control: tuple[Any, ...]) -> int:
    level, kind, data = control
    if level == socket.IPPROTO_IPV6 and kind == socket.IPV6_PKTINFO:
        return int(struct.unpack_from("@I", data, 16)[0])
    if level == socket.IPPROTO_IP and kind == IP_PKTINFO:
        return int(struct.unpack_from("@i", data)[0])
    return 0


def _packet(data: bytes, token: str) -> dict[str, Any] | None:
    """A packet of this very probe; anything else on the wire is not for us."""
    try:
        packet = json.loads(data.rstrip(b"\0"))
    except ValueError:
        return None
    good = isinstance(packet, dict) and packet.get("token") == token and isinstance(packet.get("node"), str)
    return packet if good else None
