"""Write a run's directory: records as they come, then summary, report and, last of all, the manifest.

Until finish() the directory is called NAME.partial: a run that was killed is never taken for a finished one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic import BaseModel

from launcher.errors import UsageError
from launcher.results.manifest import (
    MANIFEST_NAME,
    Manifest,
    RunFacts,
    ScrubbedValue,
    manifest_text,
    seal_of,
)
from launcher.results.read_records import read_records
from launcher.results.records import EngineSample, NodeSample, RequestRecord
from launcher.results.reference import ReferenceRow, reference_text
from launcher.results.run_directory import (
    ENGINE,
    NODES,
    RAW_FILES,
    REFERENCE,
    REQUESTS,
    SUMMARY,
    find_files,
    hash_file,
)
from launcher.results.summarize import summarize
from launcher.results.summary import Summary, summary_text
from launcher.write_file import write_file

# Renders report.md, report.html and plots/ into a directory.
Render = Callable[[Path, RunFacts, Summary, Sequence[ReferenceRow]], None]


class RunWriter:
    """Owns NAME.partial until finish(). Not for several threads at once. UsageError where one exists."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.partial = directory.with_name(directory.name + ".partial")
        for path in (directory, self.partial):
            if os.path.lexists(path):
                raise UsageError(
                    f"{path} must not exist yet",
                    hint=f"choose another name, or remove it: rm -r {path}",
                )
        self.partial.mkdir(parents=True)
        self._files: dict[str, IO[str]] = {
            name: (self.partial / name).open("x", encoding="utf-8") for name in RAW_FILES
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The raw records of a run that failed stay in NAME.partial."""
        self._close()

    def add_request(self, record: RequestRecord) -> None:
        self._append(REQUESTS, record)

    def add_engine_sample(self, sample: EngineSample) -> None:
        self._append(ENGINE, sample)

    def add_node_sample(self, sample: NodeSample) -> None:
        self._append(NODES, sample)

    def sync(self) -> None:
        """After each case: what was added survives a power cut. Blocks for the disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())

    def finish(
        self,
        facts: RunFacts,
        *,
        references: Sequence[ReferenceRow] = (),
        render: Render | None = None,
        scrubbed: Sequence[ScrubbedValue] = (),
        published_from: str | None = None,
    ) -> Manifest:
        """Summary, report (launcher.results.report.render_report, where its libraries are installed), seal,
        final name. Everything is computed from the records as they are on disk.
        """
        self.sync()
        self._close()
        records = read_records(self.partial)
        summary = summarize(records.requests, records.engine_samples, records.node_samples)
        write_file(self.partial / SUMMARY, summary_text(summary))
        if references:
            write_file(self.partial / REFERENCE, reference_text(references))
        if render is not None:
            render(self.partial, facts, summary, references)
        manifest = seal_directory(
            self.partial, facts, scrubbed=tuple(scrubbed), published_from=published_from
        )
        self.partial.rename(self.directory)
        _sync_directory(self.directory.parent)
        return manifest

    def _append(self, name: str, record: BaseModel) -> None:
        self._files[name].write(record.model_dump_json() + "\n")

    def _close(self) -> None:
        for file in self._files.values():
            file.close()


def seal_directory(
    directory: Path,
    facts: RunFacts,
    *,
    scrubbed: tuple[ScrubbedValue, ...] = (),
    published_from: str | None = None,
) -> Manifest:
    """Hash what is there, and write the manifest."""
    known = facts.model_dump(mode="json", include=set(RunFacts.model_fields))
    files = [hash_file(directory, path) for path in sorted(find_files(directory))]
    content = {
        **known,
        "scrubbed": [item.model_dump(mode="json") for item in scrubbed],
        "published_from": published_from,
        "files": [entry.model_dump(mode="json") for entry in files],
    }
    manifest = Manifest.model_validate({**content, "seal": seal_of(content)})
    write_file(directory / MANIFEST_NAME, manifest_text(manifest))
    return manifest


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
