"""sparkctl results list | verify | compare | reproduce | publish | report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli.options import JsonOption

if TYPE_CHECKING:
    from launcher.results.compare_runs import Comparison, ManifestDifference
    from launcher.results.publish_run import Publication
    from launcher.results.reproduce_run import ReproduceVerdict

app = typer.Typer(no_args_is_help=True, help="List, check, compare, repeat and publish results of `bench`.")

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run.")]
MAX_TOLD = 60


@app.command("list")
def list_command(
    root: Annotated[Path, typer.Argument(metavar="DIR", help="Where the results lie.")] = Path("results"),
    json: JsonOption = False,
) -> None:
    """What lies under results/, without checking it."""
    from dataclasses import asdict

    from launcher.cli.print_table import print_table
    from launcher.results.list_results import list_results

    found = list_results(root)
    if json:
        _print_json([asdict(item) for item in found])
        return
    rows = [
        (item.name, item.kind, item.protocol or "", ", ".join(item.suites), item.recipe or item.model or "",
         str(item.num_nodes or ""), item.started_at or "", item.note)
        for item in found
    ]  # fmt: skip
    print_table(("result", "kind", "protocol", "suites", "recipe", "nodes", "started", "note"), rows)


@app.command("verify")
def verify(directory: Directory, json: JsonOption = False) -> None:
    """Check schema and hashes, and recompute the summary from the raw records. Exit status 8: it is wrong.

    A changed byte, record or file anywhere is found. Quote the seal where you publish a figure.
    """
    from launcher.results.verify_run import verify_run

    run = verify_run(directory)
    manifest, records = run.manifest, run.records
    failed = sum(cell.failed for cell in run.summary.cells)
    if json:
        _print_json(
            {
                "run_id": manifest.run_id,
                "protocol": manifest.protocol,
                "seal": manifest.seal,
                "files": len(manifest.files) + 1,
                "requests": len(records.requests),
                "failed_requests": failed,
                "cells": len(run.summary.cells),
            }
        )
        return
    typer.echo(
        f"ok: {manifest.run_id}, protocol {manifest.protocol}: {len(manifest.files) + 1} files,"
        f" {len(records.requests)} requests ({failed} failed), {len(run.summary.cells)} cases;"
        " the summary follows from the records"
    )
    typer.echo(f"seal {manifest.seal}")


@app.command("compare")
def compare(
    first: Annotated[Path, typer.Argument(metavar="A")],
    second: Annotated[Path, typer.Argument(metavar="B")],
    json: JsonOption = False,
) -> None:
    """What differed between two runs, and then who was faster. Refuses runs of two protocols."""
    from dataclasses import asdict

    from launcher.results.compare_runs import compare_runs
    from launcher.results.verify_run import verify_run

    found = compare_runs(verify_run(first), verify_run(second))
    if json:
        _print_json(
            {
                "differences": [asdict(item) for item in found.differences],
                "figures": [_plain(item) for item in found.figures],
                "left_out": list(found.left_out),
            }
        )
        return
    _show_differences(found.differences)
    _show_figures(found)


@app.command("reproduce")
def reproduce(
    directory: Directory,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Where the second run goes. Default: DIR-again-N."
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="Judge this run, which exists, and run nothing."),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option("--run", metavar="RUN_ID", help="The running cluster; default: the open one."),
    ] = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="For a run against an endpoint of others.")
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option("--api-key-file", metavar="FILE", help="Its key.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run the same benchmark again on the running cluster, and say whether its medians agree.

    The same lock, prompts and settings are required. Exit status 8: not reproduced. The verdict is kept
    beside the second run.
    """
    from launcher.errors import ResultWrong
    from launcher.results.reproduce_run import judge, save_verdict
    from launcher.results.run_again import run_again
    from launcher.results.verify_run import verify_run

    first = verify_run(directory)
    if against is not None:
        second = against
    else:
        from launcher.bench.endpoint import cluster_endpoint, given_endpoint

        model = first.manifest.served_model
        endpoint = given_endpoint(url, model, api_key_file) if url is not None else cluster_endpoint(run)
        second = run_again(first, output, endpoint, lambda text: typer.echo(text, err=True))
    verdict = judge(first, verify_run(second))
    path = save_verdict(verdict, second)
    if json:
        _print_json({**_plain(verdict), "second_run": str(second), "file": str(path)})
    else:
        _show_verdict(verdict)
        typer.echo(f"kept in {path}")
    if verdict.verdict != "reproduced":
        raise typer.Exit(ResultWrong.exit_code)


@app.command("publish")
def publish(
    directory: Directory,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Ends in .tar.gz or .zip.")
    ] = None,
    private: Annotated[
        list[str] | None,
        typer.Option("--private", metavar="WORD", help="A word that is private too; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Write it without asking.")] = False,
    json: JsonOption = False,
) -> None:
    """Write a self-contained archive with checksums. What is private is replaced, and shown first.

    Replaced are host names, users, addresses, homes and keys. Without --yes you are asked.
    """
    from launcher.errors import UsageError
    from launcher.results.private_values import Scrubber, own_names
    from launcher.results.publish_run import scrubbed_copy, write_archive
    from launcher.results.report import render_report, require_libraries
    from launcher.results.verify_run import verify_run

    require_libraries()
    run = verify_run(directory)
    target = output or Path(f"{run.manifest.run_id}.tar.gz")
    if not target.name.endswith((".tar.gz", ".zip")):
        raise UsageError(
            f"--output must end in .tar.gz or .zip, got {target.name}", hint="--output run.tar.gz"
        )
    if json and not yes:
        raise UsageError("--json must come with --yes: nobody is asked", hint="look first, without --json")
    scrubber = Scrubber((*own_names(), *(private or ())))
    with scrubbed_copy(run, scrubber, render=render_report) as publication:
        if not json:
            _show_scrubbed(publication)
        if not yes and not _agreed(f"Write {target}?"):
            typer.echo("nothing was written")
            raise typer.Exit(1)
        digest = write_archive(publication, target, "zip" if target.suffix == ".zip" else "tar.gz")
    if json:
        _print_json(
            {
                "archive": str(target),
                "sha256": digest,
                "seal": publication.manifest.seal,
                "scrubbed": [item.model_dump(mode="json") for item in publication.scrubbed],
            }
        )
        return
    typer.echo(f"{target}\nsha256 {digest}\nseal   {publication.manifest.seal}")


@app.command("report")
def report(directory: Directory, json: JsonOption = False) -> None:
    """Write report.md, report.html and plots/ again, with the third-party rows at hand; gives a new seal."""
    from launcher.results.finish_run import finish_run
    from launcher.results.report import render_report, require_libraries
    from launcher.results.verify_run import verify_run

    require_libraries()
    old = verify_run(directory).manifest
    manifest = finish_run(
        directory,
        old,
        render=render_report,
        scrubbed=old.scrubbed,
        published_from=old.published_from,
    )
    if json:
        _print_json({"seal": manifest.seal, "files": [entry.path for entry in manifest.files]})
    else:
        typer.echo(f"{directory / 'report.html'}\nseal {manifest.seal}")


def _agreed(question: str) -> bool:
    """Raises UsageError where nobody is there to answer."""
    from launcher.errors import UsageError

    try:
        return typer.confirm(question)
    except typer.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise
        raise UsageError(
            f"{question} must be answered, got the end of the input", hint="after a look: --yes"
        ) from error


def _show_differences(differences: tuple[ManifestDifference, ...]) -> None:
    from launcher.cli.print_table import print_table

    if not differences:
        typer.echo("The manifests differ in nothing but time.")
        return
    typer.echo(f"{len(differences)} difference(s) between the manifests:")
    print_table(
        ("key", "A", "B"),
        [(item.key, _short(item.a), _short(item.b)) for item in differences[:MAX_TOLD]],
    )
    if len(differences) > MAX_TOLD:
        typer.echo(f"and {len(differences) - MAX_TOLD} more: --json")


def _show_figures(found: Comparison) -> None:
    from launcher.cli.print_table import print_table
    from launcher.results.report import format_spread

    for line in found.left_out:
        typer.echo(f"left out: {line}")
    words = {"a": "A", "b": "B", "not told apart": "not told apart"}
    rows = [
        (item.suite, f"{item.case} C{item.concurrency}", item.figure, format_spread(item.a, 3),
         format_spread(item.b, 3), "" if item.b_over_a is None else f"{item.b_over_a:.3f}",
         words[item.faster])
        for item in found.figures
    ]  # fmt: skip
    print_table(("suite", "case", "figure", "A: median (min - max)", "B", "B/A", "better"), rows)
    typer.echo("better: the ranges over the rounds do not meet, and each has two rounds or more")


def _show_verdict(verdict: ReproduceVerdict) -> None:
    from launcher.cli.print_table import print_table

    _show_differences(verdict.differences)
    rows = [
        (item.suite, f"{item.case} C{item.concurrency}", item.figure, f"{item.first:.4g}",
         f"{item.second:.4g}", "" if item.change is None else f"{item.change:+.1%}", f"{item.tolerance:.0%}",
         "agrees" if item.within else "does not agree")
        for item in verdict.figures
    ]  # fmt: skip
    print_table(("suite", "case", "figure", "first", "second", "change", "tolerance", "verdict"), rows)
    for problem in verdict.problems:
        typer.echo(f"problem: {problem}")
    typer.echo(verdict.verdict)


def _show_scrubbed(publication: Publication) -> None:
    from launcher.cli.print_table import print_table

    if not publication.scrubbed:
        typer.echo(
            "Nothing private was found. Look at the files yourself too: an unknown name is not known here."
        )
        return
    typer.echo("Private values, and what stands in their place:")
    rows = [
        (item.kind, publication.examples[item.replaced_by], item.replaced_by, str(item.count))
        for item in publication.scrubbed
    ]
    print_table(("kind", "found", "replaced by", "times"), rows)


def _short(text: str | None) -> str:
    return "(none)" if text is None else text[:100]


def _plain(value: Any) -> Any:
    """A dataclass with models inside, as JSON data."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode="json")


def _print_json(value: object) -> None:
    import json

    typer.echo(json.dumps(value, indent=2))
