"""`sparkctl engram`: pack, verify and inspect the Engram tables of this node.

The only file of the launcher that knows the engram package, and only inside its functions: the commands run
on the node that holds the tables, and `sparkctl --help` must not load numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonOption
from launcher.errors import SparkctlError, UsageError

if TYPE_CHECKING:
    from engram.checkpoint import Checkpoint

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="""Pack, verify and measure the Engram tables on this node's disk.

\b
sparkctl engram pack --checkpoint DIR --out DIR --tp 3 --rank 0
sparkctl engram verify --tables DIR --full
""",
)

DEFAULT_REPO = "deepseek-ai/DeepSeek-V4.1-Flash"

CheckpointOption = Annotated[
    Path, typer.Option("--checkpoint", metavar="DIR", help="Checkpoint folder: config.json and the shards.")
]
RevisionOption = Annotated[
    str | None,
    typer.Option("--revision", metavar="COMMIT", help="Its revision. Default: what the download recorded."),
]
LayersOption = Annotated[
    str | None, typer.Option("--layers", metavar="L,L", help="Engram layers. Default: all of them.")
]
BufferedOption = Annotated[
    bool, typer.Option("--allow-buffered", help="Go on through the page cache where O_DIRECT is refused.")
]
# Each has 32 MiB of buffers; packing promises to stay below 512 MiB.
WorkersOption = Annotated[int, typer.Option("--workers", min=1, max=12, help="Chunks in work at once.")]


class EngramFailed(SparkctlError):
    """An EngramError on its way out: same message and hint, exit code 7."""

    exit_code = 7


@contextmanager
def _engram_errors() -> Iterator[None]:
    from engram.errors import EngramError

    try:
        yield
    except EngramError as error:
        raise EngramFailed(error.message, hint=error.hint, node=error.node) from error


@app.command()
def pack(
    checkpoint: CheckpointOption,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the packed files.")],
    tp: Annotated[int, typer.Option("--tp", min=1, help="Ranks that share a table; 1 is a full replica.")],
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="This node's rank.")] = None,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", metavar="all|R,R", help="Several ranks, from one pass over the source."),
    ] = None,
    layers: LayersOption = None,
    revision: RevisionOption = None,
    repo: Annotated[str, typer.Option("--repo", help="Source repository, for the manifest.")] = DEFAULT_REPO,
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard what is there for these ranks and pack it anew.")
    ] = False,
    allow_buffered: BufferedOption = False,
    workers: WorkersOption = 4,
    json: JsonOption = False,
) -> None:
    """Pack the Engram tables into this rank's files; goes on where a killed run stopped.

    \b
    sparkctl engram pack --checkpoint DIR --out DIR --tp 3 --rank 0
    """
    chosen = _choose_ranks(tp, rank, ranks)
    with _engram_errors():
        from engram.checkpoint import open_checkpoint
        from engram.pack_table import PackRequest, pack_tables
        from launcher.cli.byte_progress import ByteProgress

        source = open_checkpoint(checkpoint, revision=revision)
        request = PackRequest(
            checkpoint=source,
            directory=out,
            source_repo=repo,
            tp=tp,
            ranks=chosen,
            layer_ids=_choose_layers(layers, source),
            allow_buffered=allow_buffered,
            restart=restart,
            workers=workers,
        )
        with ByteProgress("packing") as progress:
            report = pack_tables(request, progress)
    if json:
        _print_json({**asdict(report), "files": [str(path) for path in report.files]})
        return
    for path in report.files:
        typer.echo(path)
    rate = report.packed_bytes / max(report.seconds, 1e-9) / 1e6
    before = f", {report.skipped_bytes} bytes were done before" if report.skipped_bytes else ""
    how = "past the page cache" if report.is_direct else "through the page cache"
    typer.echo(
        f"packed {report.packed_bytes} bytes in {report.seconds:.1f} s ({rate:.0f} MB/s, {how}){before}",
        err=True,
    )


@app.command()
def verify(
    tables: Annotated[Path, typer.Option("--tables", metavar="DIR", help="Folder of the packed files.")],
    sample: Annotated[
        int | None, typer.Option("--sample", min=0, metavar="N", help="Random MiBs to read of each file.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Read every MiB.")] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Compare rows with this checkpoint."),
    ] = None,
    revision: RevisionOption = None,
    tp: Annotated[int | None, typer.Option("--tp", min=1, help="Expect files of this split.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Expect this rank's files.")] = None,
    layers: LayersOption = None,
    allow_buffered: BufferedOption = False,
    workers: WorkersOption = 4,
    json: JsonOption = False,
) -> None:
    """Check header, size and identity of packed files; then 64 random MiBs of each, --sample N or --full.

    \b
    sparkctl engram verify --tables DIR --full --checkpoint DIR
    """
    if full and sample is not None:
        raise UsageError("--sample and --full must not both be given.", hint="leave one of them out")
    with _engram_errors():
        from engram.checkpoint import open_checkpoint
        from engram.verify_table import VerifyRequest, verify_tables
        from launcher.cli.byte_progress import ByteProgress

        source = None if checkpoint is None else open_checkpoint(checkpoint, revision=revision)
        request = VerifyRequest(
            directory=tables,
            rank=rank,
            tp=tp,
            revision=revision,
            layer_ids=None if layers is None else _numbers("--layers", layers),
            sample=64 if sample is None else sample,
            full=full,
            checkpoint=source,
            allow_buffered=allow_buffered,
            workers=workers,
        )
        with ByteProgress("verifying") as progress:
            reports = verify_tables(request, progress)
    if json:
        fields = ("name", "num_blocks", "checked_blocks", "compared_rows")
        _print_json({"files": [{field: getattr(report, field) for field in fields} for report in reports]})
        return
    for report in reports:
        rows = f", {report.compared_rows} rows equal to the checkpoint" if source is not None else ""
        typer.echo(f"{report.name}: header ok, {report.checked_blocks} of {report.num_blocks} MiB ok{rows}")


@app.command()
def bench(
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="Scratch folder on the disk to measure (6 GB).")
    ],
    results: Annotated[Path, typer.Option("--results", metavar="DIR", help="Folder of the raw results.")],
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME,NAME", help="Measurements. Default: all.")
    ] = None,
    queue_depth: Annotated[int, typer.Option("--queue-depth", min=1, help="Reads in flight.")] = 256,
    json: JsonOption = False,
) -> None:
    """Measure the row store against this disk's limits (fio) and a reference reader, on a synthetic table.

    \b
    sparkctl engram bench --directory DIR --results results/engram
    """
    with _engram_errors():
        from engram.bench.run_bench import BenchRequest, default_text_roots, run_bench

        request = BenchRequest(
            directory=directory,
            results=results,
            text_roots=default_text_roots(),
            only=() if only is None else tuple(only.split(",")),
            queue_depth=queue_depth,
        )
        figures = run_bench(request, report=lambda line: typer.echo(line, err=json))
    missed = [figure.name for figure in figures if not figure.reached]
    if json:
        # One object on stdout, so no error object after it; the samples are in the results folder.
        fields = ("name", "value", "bar", "at_most", "unit", "reached", "notes")
        _print_json(
            {
                "results": str(results),
                "figures": [{field: getattr(figure, field) for field in fields} for figure in figures],
            }
        )
        raise typer.Exit(EngramFailed.exit_code if missed else 0)
    if missed:
        raise EngramFailed(
            f"every figure must reach its bar, got {len(missed)} of {len(figures)} that do not: "
            f"{', '.join(missed)} ({results}).",
            hint="run it again on an idle machine; the raw samples are in the results folder",
        )


@app.command("hash")
def hash_tokens(
    checkpoint: CheckpointOption,
    ids: Annotated[str | None, typer.Option("--ids", metavar="ID,ID", help="Token ids.")] = None,
    text: Annotated[str | None, typer.Option("--text", help="Text, without special tokens.")] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Ranks that share a table.")] = 1,
    rank: Annotated[int, typer.Option("--rank", min=0, help="Only the columns of this rank.")] = 0,
) -> None:
    """Print the rows that each token reads, one JSON line a token: {"token": .., "rows": {layer: [..]}}."""
    if (ids is None) == (text is None):
        raise UsageError("one of --ids and --text must be given.", hint="sparkctl engram hash --help")
    if rank >= tp:
        raise UsageError(f"--rank must be below --tp {tp}, got {rank}.", hint="ranks count from 0")
    with _engram_errors():
        from json import dumps

        from tokenizers import Tokenizer

        from engram.hash_layout import make_hash_layout
        from engram.hash_rows import RowHasher
        from engram.model_config import read_engram_config
        from engram.token_map import load_token_map

        config = read_engram_config(checkpoint)
        token_map = load_token_map(checkpoint, expected_classes=config.engram_compressed_vocab_size)
        if text is not None:
            tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
            tokens = tuple(tokenizer.encode(text, add_special_tokens=False).ids)
        else:
            tokens = _numbers("--ids", ids or "")
        hasher = RowHasher(
            make_hash_layout(config),
            token_map,
            pad_token_id=config.engram_pad_token_id,
            image_token_id=config.image_token_id,
            rank=rank,
            tp=tp,
        )
        for token, rows in zip(tokens, hasher.hash_prompt(tokens).tolist(), strict=True):
            layers = dict(zip(config.engram_layer_ids, rows, strict=True))
            typer.echo(dumps({"token": token, "rows": layers}))


def _print_json(value: dict[str, object]) -> None:
    from json import dumps

    typer.echo(dumps(value, indent=2))


def _choose_ranks(tp: int, rank: int | None, ranks: str | None) -> tuple[int, ...]:
    if rank is not None and ranks is not None:
        raise UsageError("--rank and --ranks must not both be given.", hint="leave one of them out")
    if ranks == "all":
        return tuple(range(tp))
    if ranks is not None:
        return _numbers("--ranks", ranks)
    if rank is not None:
        return (rank,)
    if tp == 1:
        return (0,)
    raise UsageError(
        f"--rank must be given at --tp {tp}, got none.",
        hint=f"pass --rank with this node's rank, 0 to {tp - 1}: each node packs its own",
    )


def _choose_layers(layers: str | None, source: Checkpoint) -> tuple[int, ...]:
    return source.config.engram_layer_ids if layers is None else _numbers("--layers", layers)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() and len(part) < 20 for part in parts):
        raise UsageError(f"{option} must be numbers like 0,1,2, got {text!r}.", hint="sparkctl engram --help")
    return tuple(int(part) for part in parts)
