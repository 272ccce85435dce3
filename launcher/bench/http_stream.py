"""One POST over a connection of its own, each piece of the answer with its arrival: HTTP/1.1 on asyncio.

httpx costs more CPU per streamed token, which a server on the same
cores would feel. So the streams are read here, and decoded only after the last byte; everything else
uses httpx.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

CONNECT_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLimits:
    """Seconds: to the first byte of the body, between two pieces, and for the whole request."""

    first_byte_s: float
    stall_s: float
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReply:
    """`pieces`: (time.monotonic(), bytes of the body). `error` names what ended the answer too early."""

    status: int
    pieces: list[tuple[float, bytes]]
    started_s: float
    ended_s: float
    error: str | None


class _Reader(asyncio.Protocol):
    """Splits head and body and takes the chunked coding off. Knows when the answer is complete."""

    def __init__(self) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self.pieces: list[tuple[float, bytes]] = []
        self.last_s = time.monotonic()
        self.problem: str | None = None
        self._pending = b""
        self._in_body = False
        self._chunked = False
        self._body_left: int | None = None  # of the chunk, or of a body of known length
        self._skip_line_end = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        pass

    def data_received(self, data: bytes) -> None:
        self.last_s = time.monotonic()
        self._pending += data
        if self.done.done():
            return
        try:
            if self._in_body or self._read_head():
                self._read_body()
        except ValueError as error:
            self._finish(f"the answer must be HTTP/1.1, got {error}")

    def _read_head(self) -> bool:
        head, found, rest = self._pending.partition(b"\r\n\r\n")
        if not found:
            return False
        first, *lines = head.decode("latin-1").split("\r\n")
        if not first.startswith("HTTP/1."):
            raise ValueError(repr(first[:60]))
        self.status = int(first.split()[1])
        self._pending = rest
        if self.status == 100:
            return self._read_head()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = "chunked" in headers.get("transfer-encoding", "").lower()
        if not self._chunked and "content-length" in headers:
            self._body_left = int(headers["content-length"])
        self._in_body = True
        return True

    def _read_body(self) -> None:
        if not self._chunked:
            self._take(len(self._pending))
            if self._body_left == 0:
                self._finish(None)
            return
        body: list[bytes] = []
        while self._pending:
            if self._body_left:
                part, self._pending = self._pending[: self._body_left], self._pending[self._body_left :]
                self._body_left -= len(part)
                body.append(part)
                self._skip_line_end = self._body_left == 0
                continue
            if self._skip_line_end:
                if len(self._pending) < 2:
                    break
                self._pending, self._skip_line_end = self._pending[2:], False
                continue
            size, found, rest = self._pending.partition(b"\r\n")
            if not found:
                break
            self._pending, self._body_left = rest, int(size.split(b";")[0], 16)
            if self._body_left == 0:
                self._finish(None)
                break
        if body:
            self.pieces.append((self.last_s, b"".join(body)))

    def _take(self, num_bytes: int) -> None:
        if num_bytes:
            self.pieces.append((self.last_s, self._pending))
            self._pending = b""
            if self._body_left is not None:
                self._body_left = max(0, self._body_left - num_bytes)

    def connection_lost(self, error: Exception | None) -> None:
        complete = self._in_body and not self._chunked and self._body_left is None and error is None
        self._finish(None if complete else "the server closed the connection before the answer was complete")

    def _finish(self, problem: str | None) -> None:
        if not self.done.done():
            self.problem = problem
            self.done.set_result(None)


async def post_stream(url: str, body: bytes, headers: dict[str, str], limits: StreamLimits) -> StreamReply:
    """Never raises for the network or the server: `error` says what happened. Cancelling closes the
    connection, which ends the request on the server too.
    """
    started_s = time.monotonic()
    target = urlsplit(url)
    secure = target.scheme == "https"
    host, port = target.hostname or "", target.port or (443 if secure else 80)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            transport, reader = await asyncio.get_running_loop().create_connection(
                _Reader, host, port, ssl=ssl.create_default_context() if secure else None
            )
    except (OSError, TimeoutError) as error:
        said = str(error) or f"no connection in {CONNECT_TIMEOUT_S:.0f} s"
        return StreamReply(
            status=0, pieces=[], started_s=started_s, ended_s=time.monotonic(), error=f"connect: {said}"
        )
    try:
        head = {
            "Host": target.netloc.rpartition("@")[2],
            "Accept": "text/event-stream",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            "Connection": "close",
        } | headers
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        transport.write(f"POST {target.path or '/'} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        started_s = time.monotonic()
        error_text = await _wait(reader, started_s, limits)
    finally:
        transport.abort()
    return StreamReply(
        status=reader.status,
        pieces=reader.pieces,
        started_s=started_s,
        ended_s=max(time.monotonic() if error_text else reader.last_s, started_s),
        error=error_text,
    )


async def _wait(reader: _Reader, started_s: float, limits: StreamLimits) -> str | None:
    """Sleeps until the nearest deadline, not once a piece: reading stays cheap."""
    while not reader.done.done():
        if reader.pieces:
            idle_until_s, name = reader.last_s + limits.stall_s, f"stalled for {limits.stall_s:g} s"
        else:
            idle_until_s, name = (
                started_s + limits.first_byte_s,
                f"no first byte in {limits.first_byte_s:g} s",
            )
        total_until_s = started_s + limits.total_s
        if total_until_s < idle_until_s:
            idle_until_s, name = total_until_s, f"not complete in {limits.total_s:g} s"
        left_s = idle_until_s - time.monotonic()
        if left_s <= 0:
            return f"timeout: {name}"
        # The first piece brings the nearer deadline of a stall: look again that often.
        await asyncio.wait((reader.done,), timeout=min(left_s, limits.stall_s))
    return reader.problem
