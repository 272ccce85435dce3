"""A plugin for benchmarks only: the expert backends that are checked at boot are those of GPU_SPEC_EXPERTS.

On sm_90 one of the candidates compiles for minutes before it can be checked; gpu_spec.py starts six engines.
"""

import os
from pathlib import Path
from typing import Any

NAME = "gpu_spec_plugin"


def write_plugin(folder: Path) -> Path:
    """A folder for PYTHONPATH that holds the entry point of this file."""
    info = folder / f"{NAME}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{NAME} = {NAME}:register\n")
    (folder / f"{NAME}.py").write_text(Path(__file__).read_text())
    return folder


def register() -> None:
    wanted = os.environ.get("GPU_SPEC_EXPERTS")
    if not wanted:
        return
    from sgl_ext.experts import boot_choice

    candidates = boot_choice.list_candidates

    def list_wanted(*arguments: Any) -> tuple[Any, ...]:
        return tuple(item for item in candidates(*arguments) if item.name in wanted.split(","))

    boot_choice.list_candidates = list_wanted
