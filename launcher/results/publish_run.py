"""A run as one archive for others: private values replaced, sealed again, the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from launcher.errors import ResultWrong, UsageError
from launcher.results.finish_run import Render, finish_run
from launcher.results.manifest import MANIFEST_NAME, Manifest, RunFacts, ScrubbedValue, resolve
from launcher.results.private_values import Scrubber
from launcher.results.records import RequestRecord, text_sha256
from launcher.results.report import MARKDOWN, PAGE
from launcher.results.run_directory import (
    ENGINE,
    LOCK,
    NODES,
    PLOTS,
    REFERENCE,
    REQUESTS,
    SUMMARY,
    SUMS,
    find_files,
    read_small,
)
from launcher.results.verify_run import VerifiedRun, verify_run

Format = Literal["tar.gz", "zip"]
# Any fixed moment will do; 1980-01-01 is the earliest that zip can say.
_EPOCH_S = 315532800
_MODE = 0o644


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """`directory` is a verified copy without private values; it lives as long as the context it came from.

    `examples`: stand-in -> what it replaces, to be shown to the owner and to nobody else.
    """

    directory: Path
    manifest: Manifest
    scrubbed: tuple[ScrubbedValue, ...]
    examples: dict[str, str]


@contextmanager
def scrubbed_copy(run: VerifiedRun, scrubber: Scrubber, *, render: Render | None) -> Iterator[Publication]:
    """Raises ResultWrong where a figure would change by it."""
    with tempfile.TemporaryDirectory(prefix="sparkctl-publish-") as temporary:
        directory = Path(temporary) / run.manifest.run_id
        directory.mkdir()
        records = run.records
        requests = tuple(_scrub_request(record, scrubber) for record in records.requests)
        for name, items in (
            (REQUESTS, requests),
            (ENGINE, tuple(_scrub_model(item, scrubber) for item in records.engine_samples)),
            (NODES, records.node_samples),
        ):
            text = "".join(item.model_dump_json() + "\n" for item in items)
            (directory / name).write_text(text, encoding="utf-8")
        facts = _scrub_facts(run.manifest, scrubber)
        for name in _other_files(run):
            text = read_small(run.directory, name).decode(errors="replace")
            scrubbed = scrubber.scrub(text)
            if name == LOCK and scrubbed != text:  # the manifest's hash is of the lock as it was
                note = f"{LOCK} is left out of the published run: it holds a private value"
                facts = facts.model_copy(update={"notes": (*facts.notes, note)})
                continue
            (directory / name).write_text(scrubbed, encoding="utf-8")
        manifest = finish_run(
            directory,
            facts,
            references=run.references,
            render=render,
            scrubbed=scrubber.found,
            published_from=run.manifest.seal,
        )
        if verify_run(directory).summary != run.summary:
            raise ResultWrong(
                f"{run.directory} must keep its figures without private values, got other ones",
                hint="a case or a metric's name holds a private value: run the benchmark with another name",
            )
        yield Publication(
            directory=directory, manifest=manifest, scrubbed=scrubber.found, examples=scrubber.examples
        )


def _other_files(run: VerifiedRun) -> list[str]:
    """What the benchmark wrote beside the raw records, such as another tool's own format."""
    made_anew = {REQUESTS, ENGINE, NODES, SUMMARY, REFERENCE, MARKDOWN, PAGE}
    return [
        entry.path
        for entry in run.manifest.files
        if entry.path not in made_anew and not entry.path.startswith(f"{PLOTS}/")
    ]


def _scrub_request(record: RequestRecord, scrubber: Scrubber) -> RequestRecord:
    """The hash of an output follows its text; the manifest says that something was replaced."""
    value = scrubber.scrub_value(record.model_dump(mode="json"))
    return RequestRecord.model_validate({**value, "output_sha256": text_sha256(value["output_text"])})


def _scrub_model(item: Any, scrubber: Scrubber) -> Any:
    return type(item).model_validate(scrubber.scrub_value(item.model_dump(mode="json")))


def _scrub_facts(manifest: Manifest, scrubber: Scrubber) -> RunFacts:
    """Versions stay: one with four numbers looks like an address. Hashes follow their content."""
    value = manifest.model_dump(mode="json", include=set(RunFacts.model_fields))
    kept = {name: value[name] for name in ("versions", "started_at", "ended_at", "prompts", "lock_sha256")}
    value = {**scrubber.scrub_value(value), **kept}
    for name in ("recipe", "topology"):
        if value[name] is not None:
            value[name] = resolve(value[name]["name"], value[name]["content"]).model_dump(mode="json")
    return RunFacts.model_validate(value)


def write_archive(publication: Publication, target: Path, kind: Format) -> str:
    """NAME/ with the run, and SHA256SUMS beside it (`sha256sum -c SHA256SUMS`). Returns the archive's sha256.

    Same content, same bytes. Written beside the target, then renamed. Raises UsageError where it exists.
    """
    if os.path.lexists(target):
        raise UsageError(f"{target} must not exist yet", hint="choose another name: --output FILE")
    directory = publication.directory
    paths = [directory / name for name in sorted({*find_files(directory), MANIFEST_NAME})]
    files = {f"{directory.name}/{path.relative_to(directory).as_posix()}": path for path in paths}
    sums = "".join(f"{_sha256(path)}  {name}\n" for name, path in files.items()).encode()
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        temporary = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _MODE)
            (_write_tar if kind == "tar.gz" else _write_zip)(file, files, sums)
            file.flush()
            os.fsync(file.fileno())
        digest = _sha256(temporary)
        temporary.rename(target)
        return digest
    except OSError as error:
        raise UsageError(f"{target} must be writable, got: {error.strerror}", hint="--output FILE") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _write_tar(file: Any, files: dict[str, Path], sums: bytes) -> None:
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0, compresslevel=9) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        archive.addfile(_tar_entry(SUMS, len(sums)), io.BytesIO(sums))
        for name, path in files.items():
            with path.open("rb") as content:
                archive.addfile(_tar_entry(name, path.stat().st_size), content)


def _tar_entry(name: str, num_bytes: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = num_bytes, _EPOCH_S, _MODE
    return entry


def _write_zip(file: Any, files: dict[str, Path], sums: bytes) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        archive.writestr(_zip_entry(SUMS), sums)
        for name, path in files.items():
            with path.open("rb") as content, archive.open(_zip_entry(name), "w", force_zip64=True) as packed:
                shutil.copyfileobj(content, packed)


def _zip_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
    entry.compress_type, entry.external_attr, entry.create_system = zipfile.ZIP_DEFLATED, _MODE << 16, 3
    return entry


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
