"""Close a run's directory: summary, report and, last of all, the manifest with the hash of every file.

The benchmark appends the raw records as they come. A directory without a manifest is an unfinished run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.results.manifest import (
    MANIFEST_NAME,
    Manifest,
    RunFacts,
    ScrubbedValue,
    manifest_text,
    seal_of,
)
from launcher.results.read_records import read_records
from launcher.results.reference import ReferenceRow, read_references, reference_text
from launcher.results.run_directory import RAW_FILES, REFERENCE, SUMMARY, find_files, hash_file
from launcher.results.summarize import summarize
from launcher.results.summary import Summary, summary_text
from launcher.write_file import write_file

# Writes report.md, report.html and plots/ into a directory: launcher.results.report.render_report.
Render = Callable[[Path, RunFacts, Summary, Sequence[ReferenceRow]], None]


def finish_run(
    directory: Path,
    facts: RunFacts,
    *,
    references: Sequence[ReferenceRow] | None = None,
    render: Render | None = None,
    scrubbed: Sequence[ScrubbedValue] = (),
    published_from: str | None = None,
) -> Manifest:
    """Everything is computed from the records as they are on disk.

    `references` None: the shipped third-party rows of the run's protocol. `render` is None where the
    libraries of the report are not installed. May be called again: it replaces what it wrote. Blocks for the
    disk; raises ResultWrong for a record that is wrong, UsageError where the directory cannot be written.
    """
    for name in RAW_FILES:
        if not (directory / name).exists():
            write_file(directory / name, "")
    records = read_records(directory)
    summary = summarize(records.requests, records.engine_samples, records.node_samples)
    write_file(directory / SUMMARY, summary_text(summary))
    if references is None:
        references = tuple(row for row in read_references() if row.protocol == facts.protocol)
    (directory / REFERENCE).unlink(missing_ok=True)
    if references:
        write_file(directory / REFERENCE, reference_text(references))
    if render is not None:
        render(directory, facts, summary, references)
    return _seal(directory, facts, scrubbed, published_from)


def _seal(
    directory: Path, facts: RunFacts, scrubbed: Sequence[ScrubbedValue], published_from: str | None
) -> Manifest:
    known = facts.model_dump(mode="json", include=set(RunFacts.model_fields))
    content = {
        **known,
        "scrubbed": [item.model_dump(mode="json") for item in scrubbed],
        "published_from": published_from,
        "files": [
            hash_file(directory, path).model_dump(mode="json") for path in sorted(find_files(directory))
        ],
    }
    manifest = Manifest.model_validate({**content, "seal": seal_of(content)})
    write_file(directory / MANIFEST_NAME, manifest_text(manifest))
    return manifest
