"""The small models that local recipes serve: written, and their Engram tables packed, where they are missing.

Both are made by processes of their own: the writer and the packer belong to the engine's side, which the
launcher does not import.
"""

from __future__ import annotations

import fcntl
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError, SparkctlError, UsageError
from launcher.node.facts_packed import packed_facts
from launcher.recipe import Recipe
from launcher.topology import Node

MODULE = "sgl_ext.tiny_model"
# model.path of a recipe -> which model `sparkctl tiny-model` writes there.
KINDS = {"tiny-qwen3": "qwen3", "tiny-v41": "v41"}
# Written last, so a folder with it is whole.
LAST_FILE = {"qwen3": "model.safetensors", "v41": "model.safetensors.index.json"}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    path: str
    kind: str
    total_bytes: int
    written: bool  # False: the directory held these very bytes already


def make_what_is_missing(recipe: Recipe, node: Node, tell: Tell) -> None:
    """For a recipe on this machine: its small model, and the packed tables of all its ranks. What is there is
    kept; a recipe of any other model is left alone.
    """
    kind = KINDS.get(recipe.model.path)
    if kind is None:
        return
    models = Path(node.paths.models).expanduser()
    model = models / recipe.model.path
    packed = _packed_path(recipe, node)
    if _is_whole(model, kind) and (packed is None or not _packed_problem(model, packed, recipe)):
        return
    with _one_at_a_time(models):
        if not _is_whole(model, kind):
            with _told(f"writing the small model {model}", tell):
                write_model(kind, model, [])
        if packed is not None and _packed_problem(model, packed, recipe):
            with _told(f"packing its Engram tables into {packed}", tell):
                _pack(model, packed, recipe.parallelism.tp)


def write_model(kind: str, out: Path, options: list[str]) -> Written:
    """Runs the writer; its refusals are raised as ours."""
    command = [sys.executable, "-m", MODULE, kind, str(out), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Written(**json.loads(done.stdout))
    last = _last_line(done.stderr)
    if done.returncode == UsageError.exit_code:
        raise UsageError(
            f"KIND and its options must be known, got {kind!r} ({last})", hint="sparkctl tiny-model --help"
        )
    if done.returncode == ConfigError.exit_code:
        said = json.loads(last)
        raise ConfigError(said["message"], hint=said["hint"])
    if last.startswith("ModuleNotFoundError"):
        raise ConfigError(
            f"the packages of a node must be installed to write a model, got {last}",
            hint="pip install 'sparkctl[node]'",
        )
    raise SparkctlError(f"python -m {MODULE} must exit 0, got {done.returncode}: {last}")


def _pack(model: Path, packed: Path, tp: int) -> None:
    # Homes in containers are often on a file system that cannot bypass the page cache.
    words = ["engram", "pack", "--checkpoint", str(model), "--out", str(packed)]
    words += ["--tp", str(tp), "--ranks", "all", "--allow-buffered"]
    command = [sys.executable, "-m", "launcher", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        raise ConfigError(
            f"the Engram tables of {model} must be packed into {packed}, got"
            f" {said[0] if said else _last_line(done.stderr)} (exit {done.returncode})",
            hint=shlex.join(["sparkctl", *words]),
        )


def _packed_path(recipe: Recipe, node: Node) -> Path | None:
    engram = recipe.extensions.engram
    if engram.residence != "nvme" or engram.packed_path is None:
        return None
    return Path(node.paths.engram).expanduser() / engram.packed_path


def _is_whole(model: Path, kind: str) -> bool:
    return (model / LAST_FILE[kind]).is_file()


def _packed_problem(model: Path, packed: Path, recipe: Recipe) -> str | None:
    tp = recipe.parallelism.tp
    facts = packed_facts(
        path=str(packed), ranks=list(range(tp)), tp=tp, model={"path": str(model), "problem": None}
    )
    return facts["problem"]


@contextmanager
def _one_at_a_time(models: Path) -> Iterator[None]:
    """Two first starts at once write one model. The kernel releases it however this process ends."""
    models.mkdir(parents=True, exist_ok=True)
    with (models / ".sparkctl.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _told(what: str, tell: Tell) -> Iterator[None]:
    tell(f"first start: {what}")
    started_s = time.monotonic()
    yield
    tell(f"first start: done in {time.monotonic() - started_s:.1f} s")


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["nothing on stderr"])[-1]
