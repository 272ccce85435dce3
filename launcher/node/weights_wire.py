"""What the two ends of a push say to each other on the fabric.

The source greets with 32 random bytes; the receiver answers HMAC-SHA256(token, greeting): the one-time
token itself never crosses the wire. Then, as often as the receiver likes:

    receiver: {"name": NAME, "offset": N}\\n
    source:   {"num_bytes": N}\\n, those bytes, and one byte: "=" or, when the file changed meanwhile, "!"
              or {"error": TEXT}\\n

Hashes do not travel here: the receiver has them from the launcher, over SSH.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import socket
import struct
from typing import Any

GREETING_BYTES = 32
UNCHANGED, CHANGED = b"=", b"!"
MAX_LINE_BYTES = 64 * 1024
# Both ends move data all the time; a peer this silent is gone.
SILENCE_S = 30


def set_silence(connection: socket.socket, silence_s: float = SILENCE_S) -> None:
    """Time-outs of the kernel keep the socket blocking, so that one recv or sendfile moves a whole block."""
    connection.settimeout(None)
    value = struct.pack("@ll", int(silence_s), int(silence_s % 1 * 1e6))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def greet(connection: socket.socket, tokens: list[str]) -> bool:
    """The source's side. False: a stranger."""
    greeting = os.urandom(GREETING_BYTES)
    connection.sendall(greeting)
    said = receive_exactly(connection, hashlib.sha256().digest_size)
    return any(hmac.compare_digest(said, _proof(token, greeting)) for token in tokens)


def answer_greeting(connection: socket.socket, token: str) -> None:
    connection.sendall(_proof(token, receive_exactly(connection, GREETING_BYTES)))


def _proof(token: str, greeting: bytes) -> bytes:
    return hmac.new(token.encode(), greeting, hashlib.sha256).digest()


def send_message(connection: socket.socket, message: dict[str, Any]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def receive_message(connection: socket.socket) -> dict[str, Any] | None:
    """None at the end of the connection. Byte by byte on purpose: what follows the line is not ours to read.

    Raises ConnectionError when it is no message.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = connection.recv(1)
        if not byte and not line:
            return None
        line += byte
        if not byte or len(line) > MAX_LINE_BYTES:
            raise ConnectionError("a line without an end")
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConnectionError(f"what is no message: {bytes(line[:60])!r}") from error
    if not isinstance(message, dict):
        raise ConnectionError(f"what is no message: {bytes(line[:60])!r}")
    return message


def receive_exactly(connection: socket.socket, num_bytes: int) -> bytes:
    """Raises ConnectionError when the connection ends before."""
    data = bytearray()
    while len(data) < num_bytes:
        part = connection.recv(num_bytes - len(data))
        if not part:
            raise ConnectionError("the end of the connection")
        data += part
    return bytes(data)
