"""`sparkctl tiny-model`: write a small, real model, so that a cluster can be tried without a download."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import JsonOption

MODULE = "sgl_ext.tiny_model"


def tiny_model(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Which model: qwen3.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Directory to write; new, or this model already.")
    ],
    json: JsonOption = False,
) -> None:
    """Write a tiny model directory that the engine loads; the same bytes every time.

    \b
    sparkctl tiny-model qwen3 ~/.local/share/sparkctl/models/tiny-qwen3
    """
    answer = _write(kind, out)
    if json:
        from json import dumps

        typer.echo(dumps(asdict(answer), indent=2))
        return
    done = "wrote" if answer.written else "already there:"
    typer.echo(f"{done} {answer.path} ({answer.kind}, {answer.total_bytes / 1e6:.1f} MB)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    path: str
    kind: str
    total_bytes: int
    written: bool  # False: the directory held these very bytes already


def _write(kind: str, out: Path) -> Written:
    """Runs the writer as a process of its own: it belongs to the engine's side, which we do not import."""
    import subprocess
    import sys
    from json import loads

    from launcher.errors import ConfigError, SparkctlError, UsageError

    command = [sys.executable, "-m", MODULE, kind, str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Written(**loads(done.stdout))
    last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
    if done.returncode == UsageError.exit_code:
        raise UsageError(
            f"KIND must be a known model, got {kind!r} ({last})", hint="sparkctl tiny-model --help"
        )
    if done.returncode == ConfigError.exit_code:
        said = loads(last)
        raise ConfigError(said["message"], hint=said["hint"])
    raise SparkctlError(f"python -m {MODULE} must exit 0, got {done.returncode}: {last}")
