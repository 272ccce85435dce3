"""Run by the engine's own Python as `python -c`: versions and content hashes of what it would import, as
JSON.

Imports nothing of the engine: a spec tells where a package lies. Standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("sglang", "sgl_ext", "engram")
DISTRIBUTIONS = (
    "sglang",
    "sparkctl",
    "torch",
    "flashinfer-python",
    "sglang-kernel",
    "transformers",
    "nvidia-nccl-cu13",
)
SUFFIXES = (".py", ".json", ".yaml")  # sources: what is compiled may differ between equals
SKIPPED_DIRECTORIES = {"__pycache__", "test", "tests"}


def package_folder(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return places[0] if places else None


def content_hash(folder: str) -> dict[str, Any]:
    """sha256 over the names and contents of the package's sources, in order."""
    total, num_files = hashlib.sha256(), 0
    for here, directories, names in os.walk(folder):
        directories[:] = sorted(item for item in directories if item not in SKIPPED_DIRECTORIES)
        for name in sorted(names):
            if name.endswith(SUFFIXES):
                path = Path(here) / name
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                total.update((f"{os.path.relpath(path, folder)} {digest}\n").encode())
                num_files += 1
    return {"sha256": total.hexdigest(), "num_files": num_files}


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def nccl_libraries() -> list[dict[str, Any]]:
    """NCCL libraries that pip brought: more than one in a process is an error of its own."""
    paths = [path for place in sys.path for path in sorted(Path(place).glob("nvidia/*/lib/libnccl.so*"))]
    return [{"path": str(path), "sha256": file_hash(path)} for path in dict.fromkeys(paths)]


def file_hash(path: Path) -> str:
    """Hundreds of MB: read in pieces, on a node whose memory is wanted for a model."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(4 << 20):
            total.update(piece)
    return total.hexdigest()


def main() -> None:
    folders = {name: package_folder(name) for name in PACKAGES}
    print(json.dumps({
        "problem": None,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in DISTRIBUTIONS},
        "content": {name: content_hash(folder) for name, folder in folders.items() if folder},
        "nccl": nccl_libraries(),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
