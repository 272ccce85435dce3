"""One HTTP request to the engine on this node,
so that an API bound to loopback can be asked from anywhere.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import Any


def http_request(*, host: str, port: int, method: str, path: str, body: dict[str, Any] | None = None,
                 api_key: str | None = None, request_timeout_s: float = 10.0,
                 max_bytes: int = 4 << 20) -> dict[str, Any]:  # fmt: skip
    """`{"status": 200, "body": text, "seconds": s}` or `{"failed": reason, "seconds": s}`;
    never raises for the network.
    """
    started = time.monotonic()
    headers = {"Content-Type": "application/json"}
    if api_key:
        headers["Authorization"] = "Bearer " + api_key
    connection = http.client.HTTPConnection(host, port, timeout=request_timeout_s)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        text = response.read(max_bytes).decode(errors="replace")
        return {"status": response.status, "body": text, "seconds": time.monotonic() - started}
    except (OSError, http.client.HTTPException) as error:
        return {"failed": f"{type(error).__name__}: {error}", "seconds": time.monotonic() - started}
    finally:
        connection.close()
