"""All facts that `sparkctl doctor` needs of one node, in one answer. Changes nothing.

Each part stands alone: one that fails is `{"problem": why}`, and the others are still told.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.node.facts_fabric import fabric_facts
from launcher.node.facts_gpu import gpu_facts
from launcher.node.facts_host import host_facts
from launcher.node.facts_software import software_facts
from launcher.node.facts_storage import storage_facts
from launcher.node.probe_root import ProbeRoot


def doctor(
    *,
    parts: list[str],
    peers: dict[str, Any],
    paths: dict[str, Any],
    model_path: str | None,
    engine_python: str,
    runtime: str,
    image: str | None,
    environment: dict[str, Any],
    home: str | None = None,
    root: str = "/",
) -> dict[str, Any]:
    """`parts`: which of host, fabric, gpu, storage, software.
    Clock readings frame the work, for the clock skew."""
    started_unix = time.time()
    here = ProbeRoot(root)
    home = home or str(Path.home())
    python = engine_python.replace("~", home, 1) if engine_python.startswith("~") else engine_python
    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "host": lambda: host_facts(here),
        "fabric": lambda: fabric_facts(here, peers=peers, home=home),
        "gpu": lambda: gpu_facts(here),
        "storage": lambda: storage_facts(here, paths=paths, home=home, model_path=model_path),
        "software": lambda: software_facts(
            here, engine_python=python, runtime=runtime, image=image, environment=environment
        ),
    }
    answer: dict[str, Any] = dict.fromkeys(parts)
    threads = [threading.Thread(target=_make, args=(answer, part, makers[part])) for part in parts]
    for thread in threads:  # tools are waited for, side by side
        thread.start()
    for thread in threads:
        thread.join()
    answer["tool_problems"] = here.tool_problems
    answer["started_unix"], answer["ended_unix"] = started_unix, time.time()
    return answer


def _make(answer: dict[str, Any], part: str, make: Callable[[], dict[str, Any]]) -> None:
    try:
        answer[part] = make()
    except Exception as error:  # noqa: BLE001 - thread edge: one part must not hide the others
        answer[part] = {"problem": f"{type(error).__name__}: {error}"}
