"""A plugin for benchmarks only: the expert backends that are checked at boot are those of GPU_SPEC_EXPERTS.

On sm_90 one of the candidates compiles for minutes before it can be checked; gpu_spec.py starts six engines.
"""

import os
from importlib import metadata
from pathlib import Path
from typing import Any

NAME = "gpu_spec_plugin"
GROUP = "sglang.srt.plugins"


def write_plugin(folder: Path) -> Path:
    """A folder for PYTHONPATH that holds the entry point of this file, and sgl_ext's where nothing else does:
    a checkout that is only copied to the machine has none."""
    _write_entry_point(folder, NAME, f"{NAME}:register")
    (folder / f"{NAME}.py").write_text(Path(__file__).read_text())
    if "sgl_ext" not in {point.name for point in metadata.entry_points(group=GROUP)}:
        _write_entry_point(folder, "sgl_ext", "sgl_ext.plugin:register", distribution="sparkctl")
    return folder


def _write_entry_point(folder: Path, name: str, target: str, distribution: str | None = None) -> None:
    owner = distribution or name
    info = folder / f"{owner}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {owner}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {target}\n")


def register() -> None:
    wanted = os.environ.get("GPU_SPEC_EXPERTS")
    if not wanted:
        return
    from sgl_ext.experts import boot_choice

    candidates = boot_choice.list_candidates

    def list_wanted(*arguments: Any) -> tuple[Any, ...]:
        return tuple(item for item in candidates(*arguments) if item.name in wanted.split(","))

    boot_choice.list_candidates = list_wanted
