"""A run as a person follows it: progress with rate and ETA on stderr,
what to type next, a table at the end.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import typer

from launcher.bench.endpoint import Endpoint
from launcher.bench.run_bench import Bench
from launcher.bench.run_folder import RunFolder
from launcher.bench.wave import Wave
from launcher.connect import SshOptions
from launcher.errors import Interrupted
from launcher.results.manifest import Manifest
from launcher.results.records import RequestRecord
from launcher.results.run_directory import SUMMARY
from launcher.results.summarize import summarize
from launcher.results.summary import CellSummary, Summary


class SessionProgress:
    """One line a wave. The ETA assumes that waves of the rest last as long as those so far."""

    def __init__(self) -> None:
        self._total = self._done = self._own = 0
        self._started_s = time.monotonic()

    def plan(self, total: int, done: int) -> None:
        self._total, self._done, self._started_s = total, done, time.monotonic()
        again = f", {done} of them measured before" if done else ""
        typer.echo(f"{total} waves of requests{again}", err=True)

    def wave(self, wave: Wave, records: Sequence[RequestRecord], seconds: float) -> None:
        self._done += 1
        self._own += 1
        left_s = (time.monotonic() - self._started_s) / self._own * (self._total - self._done)
        tokens = sum(record.completion_tokens or 0 for record in records)
        cell = summarize([record.model_copy(update={"warm_up": False}) for record in records]).cells[0]
        rate = f"{cell.aggregate_tokens_per_s.median:.1f} tokens/s" if cell.aggregate_tokens_per_s else "-"
        first = f"TTFT {cell.ttft_s.p50 * 1000:.0f} ms" if cell.ttft_s else "no token"
        warm = " (warm-up, discarded)" if wave.warm_up else ""
        typer.echo(
            f"[{self._done}/{self._total}] {wave.name}{warm}: {len(records)} requests, {tokens} tokens in"
            f" {seconds:.1f} s, {rate}, {first}; about {_duration(left_s)} left",
            err=True,
        )


def run_session(folder: RunFolder, endpoint: Endpoint, options: SshOptions, *, as_json: bool) -> None:
    """Prints the summary; with `as_json` the content of summary.json and where it is."""
    typer.echo(f"run directory {folder.path}", err=True)
    progress = SessionProgress()
    if folder.settings.protocol == "llama-benchy":
        from launcher.bench.protocols.llama_benchy import run_llama_benchy

        manifest = run_llama_benchy(folder, endpoint, tell=_tell)
    else:
        bench = Bench(
            folder=folder, endpoint=endpoint, options=options, tell=_tell, on_wave=progress.wave,
            on_plan=progress.plan,
        )  # fmt: skip
        try:
            manifest = bench.run()
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted; what is measured is in {folder.path}",
                hint=f"go on with: sparkctl bench --resume {folder.path}",
            ) from None
    summary = Summary.model_validate_json((folder.path / SUMMARY).read_bytes())
    if as_json:
        typer.echo(json.dumps(_as_json(folder, manifest, summary), indent=2))
    else:
        typer.echo(describe_summary(folder, manifest, summary))


def _tell(text: str) -> None:
    typer.echo(text, err=True)


def _as_json(folder: RunFolder, manifest: Manifest, summary: Summary) -> dict[str, object]:
    return {
        "directory": str(folder.path),
        "seal": manifest.seal,
        "protocol": manifest.protocol,
        "notes": list(manifest.notes),
        "summary": summary.model_dump(mode="json"),
    }


def describe_summary(folder: RunFolder, manifest: Manifest, summary: Summary) -> str:
    lines = [f"protocol {manifest.protocol}; medians over rounds, smallest and largest in brackets"]
    for cell in summary.cells_to_read():
        lines.append(f"  {cell.suite:8} {cell.case:28} C{cell.concurrency:<3} {_cell(cell)}")
    lines += [f"records  {folder.path}", f"check    sparkctl results verify {folder.path}"]
    return "\n".join(lines)


def _cell(cell: CellSummary) -> str:
    parts = []
    rate = cell.aggregate_tokens_per_s
    if rate is not None and cell.suite not in ("prefill", "prefix"):
        parts.append(f"{rate.median:.1f} tokens/s [{rate.min:.1f} {rate.max:.1f}]")
    if cell.prefill_tokens_per_s is not None and cell.suite in ("prefill", "prefix"):
        prefill = cell.prefill_tokens_per_s
        parts.append(f"prefill {prefill.median:.0f} tokens/s [{prefill.min:.0f} {prefill.max:.0f}]")
    if cell.ttft_s is not None:
        parts.append(f"TTFT p50 {cell.ttft_s.p50 * 1000:.0f} ms p99 {cell.ttft_s.p99 * 1000:.0f} ms")
    if cell.checked:
        parts.append(f"{cell.passed} of {cell.checked} right")
    if cell.failed:
        parts.append(f"{cell.failed} failed")
    return ", ".join(parts) or "no answer"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
