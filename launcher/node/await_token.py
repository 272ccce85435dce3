"""Wait until the engine on this node has generated a token. /health alone is no proof: it may be 200 while
a rank is dead, and 503 hides a model that could answer. Only a token counts."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from launcher.node.answer import answer
from launcher.node.http_request import http_request

POLL_S = 0.2
GENERATE = {"text": "Hello", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}


def await_token(
    *, host: str, port: int, api_key: str | None, timeout_s: float, request_timeout_s: float
) -> None:
    """Lines: {"health": status or reason} on each change,
    then {"token": text, "seconds": s} or {"gave_up": reason}.
    """
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    deadline = time.monotonic() + timeout_s
    last_health: object = None
    reason = "the API did not answer"
    while time.monotonic() < deadline:
        reply = http_request(host=host, port=port, method="GET", path="/health", request_timeout_s=5.0)
        health = reply.get("status", "unreachable")
        if health != last_health:
            last_health = health
            answer({"health": health})
        if health == 200:
            reply = http_request(host=host, port=port, method="POST", path="/generate", body=GENERATE,
                                 api_key=api_key, request_timeout_s=request_timeout_s)  # fmt: skip
            text, reason = _generated(reply)
            if text is not None:
                answer({"token": text, "seconds": reply["seconds"]})
                return
            answer({"not_yet": reason})
        time.sleep(POLL_S)
    answer({"gave_up": reason})


def _end_with_launcher() -> None:
    """The request may take as long as the launch; when the launcher goes away, so do we, at once."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)


def _generated(reply: dict[str, Any]) -> tuple[str | None, str]:
    if "failed" in reply:
        return None, reply["failed"]
    if reply["status"] != 200:
        return None, f"HTTP {reply['status']}: {reply['body'][:200]}"
    try:
        value = json.loads(reply["body"])
        if value["meta_info"]["completion_tokens"] >= 1:
            return str(value["text"]), ""
        return None, "the engine answered without a token"
    except (ValueError, KeyError, TypeError) as error:
        return None, f"the engine's answer was not understood: {error}"
