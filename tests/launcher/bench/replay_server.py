"""A real HTTP server on loopback that answers as an OpenAI server does, well or badly, as its prompt says."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

MODEL = "replayed"
CONTEXT = 8192


def chunk(**delta: Any) -> bytes:
    event = {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def usage(prompt: int, completion: int, cached: int | None = None) -> bytes:
    told: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion}
    if cached is not None:
        told["prompt_tokens_details"] = {"cached_tokens": cached}
    return b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n"


def counted(text: str, completion: int) -> bytes:
    """As a server does that was asked for continuous_usage_stats."""
    event = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": text}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": completion},
    }
    return b"data: " + json.dumps(event).encode() + b"\n\n"


FINISH = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
WORDS = "The tide turned before noon, and the pilot counted eleven boats at the quay. "

# Name of a behaviour -> the pieces that are written, one chunk of the transfer coding each.
STREAMS: dict[str, tuple[bytes, ...]] = {
    # three chunks, nine tokens: a draft was accepted
    "good": (
        chunk(role="assistant", content=""), chunk(content="The tide "), chunk(content="turned before "),
        chunk(content="noon."), FINISH, usage(7, 9), DONE,
    ),
    "reasoning": (
        chunk(role="assistant", content=""), chunk(reasoning_content="Let me see. "), chunk(content=""),
        chunk(content="Eleven boats."), FINISH, usage(7, 8), DONE,
    ),
    "tool": (
        chunk(tool_calls=[{"index": 0, "function": {"name": "search", "arguments": '{"query": '}}]),
        chunk(tool_calls=[{"index": 0, "function": {"arguments": '"boats"}'}}]), FINISH, usage(7, 12), DONE,
    ),
    "counted": (counted("The tide ", 3), counted("turned.", 6), FINISH, usage(7, 6), DONE),
    "split": (
        b'data: {"choices":[{"index":0,"delta":{"con', b'tent":"whole"}}]}\r\n\r', b"\n", usage(7, 2), DONE,
    ),
    "no usage": (chunk(content="Eleven boats."), FINISH, DONE),
    "error": (chunk(content="Eleven"), b'data: {"error": {"message": "out of memory"}}\n\n'),
    "cut off": (chunk(content="Eleven"),),
    "empty": (FINISH, usage(7, 0), DONE),
    "garbled": (chunk(content="\ufffd" * 30), FINISH, usage(7, 30), DONE),
    "repeated": (chunk(content="of the boat and " * 60), FINISH, usage(7, 240), DONE),
    "slow": (chunk(content="Eleven"), b"SLEEP", chunk(content=" boats"), FINISH, usage(7, 3), DONE),
    "cold": (chunk(content=WORDS), FINISH, usage(900, 17, cached=3), DONE),
    "cached": (chunk(content=WORDS), FINISH, usage(900, 17, cached=899), DONE),
}  # fmt: skip


class ReplayServer:
    """`behaviour` of every answer, unless the prompt names one in brackets: [slow].

    A good answer has max_tokens where ignore_eos is asked for.
    """

    def __init__(self, behaviour: str = "good", key: str | None = None) -> None:
        self.behaviour, self.key = behaviour, key
        self.seen: list[dict[str, Any]] = []
        server = self

        class Handler(_Handler):
            owner = server

        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()

    def pieces(self, prompt: str, body: dict[str, Any]) -> Iterator[bytes]:
        named = [name for name in STREAMS if f"[{name}]" in prompt]
        for piece in STREAMS[named[0] if named else self.behaviour]:
            yield usage(7, body["max_tokens"]) if body.get("ignore_eos") and piece == usage(7, 9) else piece


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: ReplayServer

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._send(200, {"data": [{"id": MODEL, "max_model_len": CONTEXT}]})
        else:
            self._send(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"{}")
        key = self.owner.key
        if key and self.headers["Authorization"] != f"Bearer {key}":
            return self._send(401, {"error": "no key"})
        if "messages" not in body:
            return self._send(404, {"detail": "Not Found"})
        self.owner.seen.append(body)
        prompt = str(body["messages"][-1]["content"])
        if not body.get("stream"):
            return self._send(200, {"usage": {"prompt_tokens": 3 + len(prompt) // 4, "completion_tokens": 1}})
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for piece in self.owner.pieces(prompt, body):
                if piece == b"SLEEP":
                    time.sleep(1.0)
                    continue
                self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
                self.wfile.flush()
                time.sleep(0.01)  # apart, also on a busy machine: what comes at once has no rate
            if self.owner.behaviour != "cut off" and "[cut off]" not in prompt:
                self.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass  # the client has gone
        self.close_connection = True

    def _send(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
