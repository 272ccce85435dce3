"""A second SGLang plugin, for tests: what the row store had been asked for around each forward of the target.

Every rank appends to forwards-RANK.jsonl in its folder: {"mode", "tokens", "before", "during", "rows"}:
requests to the row store since the last forward's end, during this forward, and rows of both together.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

_asked = [0, 0]  # requests and rows up to the last forward's end


def register() -> None:
    """SGLang's entry point into a plugin; the target's forward exists in schedulers."""
    from sgl_ext.process_role import ProcessRole, find_process_role

    if find_process_role(sys._getframe(1)) is not ProcessRole.SCHEDULER:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    target = "sglang.srt.models.deepseek_v4.DeepseekV4ForCausalLM.forward"
    HookRegistry.register(target, write_down, HookType.AROUND)


def write_down(
    original: Callable[..., Any],
    model: Any,
    input_ids: Any,
    positions: Any,
    forward_batch: Any,
    **kwargs: Any,
) -> Any:
    from sgl_ext.engram.row_service import get_row_service

    service = get_row_service()
    begin = service.store.counters()
    result = original(model, input_ids, positions, forward_batch, **kwargs)
    end = service.store.counters()
    line = {
        "mode": forward_batch.forward_mode.name,
        "tokens": input_ids.shape[0],
        "before": begin.requests - _asked[0],
        "during": end.requests - begin.requests,
        "rows": end.rows - _asked[1],
    }
    _asked[:] = end.requests, end.rows
    with Path(f"forwards-{service.rank}.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    return result


def write_distribution(folder: Path) -> Path:
    """What makes SGLang find this plugin, once the folder is on an engine's path."""
    metadata = folder / "forward_witness-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: forward-witness\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nwitness = tests.sgl_ext.forward_witness:register\n"
    )
    return folder
