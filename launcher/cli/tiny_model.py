"""`sparkctl tiny-model`: write a small, real model, so that a cluster can be tried without a download."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import JsonOption


def tiny_model(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="Which model: qwen3 or v41.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Directory to write; new, or this model already.")
    ],
    size: Annotated[
        str, typer.Option(metavar="SIZE", help="v41: cpu (TP 1 to 4) or h200 (what its kernels need).")
    ] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="v41: other weights for another number.")] = 0,
    engram_vocab_size: Annotated[
        int | None,
        typer.Option(
            min=2, help="v41: rows of a hash column; a table has 24 columns and two layers have one."
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write a tiny model directory that the engine loads; the same bytes every time.

    \b
    sparkctl tiny-model qwen3 ~/.local/share/sparkctl/models/tiny-qwen3
    sparkctl tiny-model v41 ~/.local/share/sparkctl/models/tiny-v41
    """
    from launcher.small_models import write_model

    options = []
    if kind == "v41":
        options = ["--size", size, "--seed", str(seed)]
        if engram_vocab_size is not None:
            options += ["--engram-vocab-size", str(engram_vocab_size)]
    answer = write_model(kind, out, options)
    if json:
        from json import dumps

        typer.echo(dumps(asdict(answer), indent=2))
        return
    done = "wrote" if answer.written else "already there:"
    typer.echo(f"{done} {answer.path} ({answer.kind}, {answer.total_bytes / 1e6:.1f} MB)")
