"""Is a run's directory what its manifest says, and do its figures follow from its records?

It catches any single change of a byte, a record or a file. The seal is a hash, no signature: somebody who
rewrites records, summary, report and manifest together makes another consistent run, with another seal. So
quote the seal where a figure is published.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ResultWrong
from launcher.results.manifest import MANIFEST_NAME, Manifest, Resolved, json_sha256, manifest_text, seal_of
from launcher.results.read_records import RunRecords, read_records
from launcher.results.reference import ReferenceFile, ReferenceRow
from launcher.results.run_directory import (
    LOCK,
    RAW_FILES,
    REFERENCE,
    SUMMARY,
    FoundFile,
    find_files,
    hash_file,
    read_manifest,
    read_small,
)
from launcher.results.strict_json import parse_model
from launcher.results.summarize import summarize
from launcher.results.summary import Summary, summary_text


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedRun:
    """A directory that was found right; everything in it as it was then."""

    directory: Path
    manifest: Manifest
    records: RunRecords
    summary: Summary
    references: tuple[ReferenceRow, ...]


def verify_run(directory: Path) -> VerifiedRun:
    """Raises ResultWrong with the file, and the line, that is wrong; UsageError when it is no directory."""
    found = find_files(directory)
    manifest = _verify_manifest(directory)
    _verify_files(directory, manifest, found)
    records = read_records(directory)
    _verify_records(directory, manifest, records)
    _verify_lock(directory, manifest)
    summary = summarize(records.requests, records.engine_samples, records.node_samples)
    if read_small(directory, SUMMARY) != summary_text(summary).encode():
        got = _first_difference(directory, summary)
        raise ResultWrong(f"{directory / SUMMARY} must be what the records give, got {got}")
    references: tuple[ReferenceRow, ...] = ()
    if REFERENCE in found:
        content = read_small(directory, REFERENCE)
        references = parse_model(ReferenceFile, content, str(directory / REFERENCE)).rows
    return VerifiedRun(
        directory=directory, manifest=manifest, records=records, summary=summary, references=references
    )


def _verify_manifest(directory: Path) -> Manifest:
    manifest, content = read_manifest(directory)
    path = directory / MANIFEST_NAME
    if content != manifest_text(manifest).encode():
        raise ResultWrong(f"{path} must be written as sparkctl writes it, got other spelling or blanks")
    if manifest.seal != seal_of(json.loads(content)):
        raise ResultWrong(f"{path} must match its seal {manifest.seal[:12]}, got other content")
    for what, resolved in (("recipe", manifest.recipe), ("topology", manifest.topology)):
        _verify_resolved(path, what, resolved)
    return manifest


def _verify_resolved(path: Path, what: str, resolved: Resolved | None) -> None:
    if resolved is not None and resolved.sha256 != json_sha256(resolved.content):
        raise ResultWrong(f"{path} {what}.sha256 must be the hash of its content, got another")


def _verify_lock(directory: Path, manifest: Manifest) -> None:
    """The copy of the lock, where the directory has one."""
    kept = next((entry.sha256 for entry in manifest.files if entry.path == LOCK), None)
    if kept is not None and kept != manifest.lock_sha256:
        named = (manifest.lock_sha256 or "none")[:12]
        raise ResultWrong(f"{directory / LOCK} must be the lock of the manifest ({named}), got {kept[:12]}")


def _verify_files(directory: Path, manifest: Manifest, found: dict[str, FoundFile]) -> None:
    listed = [entry.path for entry in manifest.files]
    for problem, names in (
        ("lists twice", [name for name in listed if listed.count(name) > 1]),
        ("lists, but the directory lacks,", sorted(set(listed) - set(found))),
        ("does not list", sorted(set(found) - set(listed))),
        ("must list, but does not,", sorted({*RAW_FILES, SUMMARY} - set(listed))),
    ):
        if names:
            raise ResultWrong(f"{directory / MANIFEST_NAME} {problem} {names[0]}")
    for entry in manifest.files:
        num_bytes = found[entry.path].num_bytes
        if num_bytes != entry.num_bytes:
            raise ResultWrong(f"{directory / entry.path} must have {entry.num_bytes} bytes, got {num_bytes}")
        actual = hash_file(directory, entry.path)
        if actual != entry:
            raise ResultWrong(
                f"{directory / entry.path} must have sha256 {entry.sha256[:12]}, got {actual.sha256[:12]}"
            )


def _verify_records(directory: Path, manifest: Manifest, records: RunRecords) -> None:
    """What the manifest says of the records, record by record."""
    prompts: dict[tuple[str, str], set[str]] = defaultdict(set)
    for listed in manifest.prompts:
        prompts[(listed.suite, listed.case)].update(listed.sha256)
    cells = set()
    for record in records.requests:
        where = f"{directory}: request {record.request_id}"
        if record.protocol != manifest.protocol or record.suite not in manifest.suites:
            raise ResultWrong(
                f"{where} must be of protocol {manifest.protocol}, suites {', '.join(manifest.suites)},"
                f" got {record.protocol}, {record.suite}"
            )
        if record.prompt_sha256 not in prompts[(record.suite, record.case)]:
            raise ResultWrong(f"{where} must have a prompt that the manifest lists, got another")
        cells.add((record.suite, record.case, record.concurrency))
    for sample in records.engine_samples:
        if (sample.suite, sample.case, sample.concurrency) not in cells:
            raise ResultWrong(f"{directory}: an engine sample must belong to a case, got {sample.case}")
    nodes = {node.node for node in manifest.nodes}
    for measured in records.node_samples:
        if measured.node not in nodes:
            raise ResultWrong(f"{directory}: a node sample must be of a listed node, got {measured.node}")


def _first_difference(directory: Path, summary: Summary) -> str:
    """The first figure that differs; the summary's own spelling where none does."""
    written = parse_model(Summary, read_small(directory, SUMMARY), str(directory / SUMMARY))
    for ours, theirs in zip(summary.cells, written.cells, strict=False):
        for name in type(ours).model_fields:
            if getattr(ours, name) != getattr(theirs, name):
                return f"{ours.suite} {ours.case} C{ours.concurrency} {name}: {getattr(theirs, name)}"
    return "other cells, nodes or spelling"
