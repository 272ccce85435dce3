"""Asks pip which torch it would install, and says so loudly when that is the large CUDA build.

Run by `make` before the engine is installed: python scripts/say_torch_build.py engines/cpu-0.5.23.txt
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

CUDA_PACKAGES = ("nvidia-", "cuda-", "triton")


def find_torch(requirements: str) -> str:
    match = re.search(r"^torch==\S+$", requirements, re.MULTILINE)
    if match is None:
        raise SystemExit("A line torch==VERSION must be in the requirement list, got none.")
    return match.group()


def resolve(requirement: str) -> list[dict[str, Any]]:
    """What pip would install for requirement, as its report lists it; downloads metadata only."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    done = subprocess.run(
        [*command, "--report", "-", requirement], stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(
            f"pip must find {requirement}, got exit status {done.returncode} (pip's own message is above)."
        )
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return found


def size_bytes(url: str) -> int | None:
    """What the server says; None where it does not say or is not asked (a file, a private index)."""
    if not url.startswith("https://"):
        return None
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as answer:
            return int(answer.headers.get("Content-Length", 0)) or None
    except (OSError, ValueError):
        return None


def main() -> None:
    requirement = find_torch(Path(sys.argv[1]).read_text())
    found = resolve(requirement)
    torch = next(item for item in found if item["metadata"]["name"] == "torch")
    cuda = [item for item in found if item["metadata"]["name"].startswith(CUDA_PACKAGES)]
    if not cuda:
        print(f"== torch {torch['metadata']['version']}: the CPU build")
        return
    sizes = [size_bytes(item["download_info"]["url"]) for item in [torch, *cuda]]
    known = sum(size for size in sizes if size is not None)
    amount = f"{known / 1e9:.1f} GB" if all(sizes) else "several gigabytes"
    version = torch["metadata"]["version"]
    print(
        f"""\
**********************************************************************************************
  torch {version} here is the CUDA build: {amount} to download with its {len(cuda)} CUDA packages.
  Nothing here uses CUDA. The CPU build is far smaller: stop now (Ctrl-C), let pip see an index that has it,
  and type make again; what is done is kept.
      export PIP_EXTRA_INDEX_URL=<index of PyTorch's CPU wheels>        (docs/install.md)
**********************************************************************************************""",
        flush=True,
    )


if __name__ == "__main__":
    main()
