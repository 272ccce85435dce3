"""Packed files against their manifest, and against the checkpoint they come from."""

import os
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from engram.checkpoint import Checkpoint
from engram.compare_rows import RowComparer
from engram.direct_file import ALIGNMENT_BYTES, AlignedBuffer, DirectFile, naming_disk_errors
from engram.errors import TableFormatError, TableMismatchError
from engram.manifest import BLOCK_BYTES, Manifest, ManifestFile, block_checksum, read_manifest
from engram.pack_table import NoProgress, PackProgress
from engram.regular_file import refuse_special_file
from engram.table_format import HEADER_BYTES, PAGE_BYTES, TableHeader, parse_header, table_file_name

REPACK_HINT = "pack this file again: sparkctl engram pack --restart"
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyRequest:
    """Header, size and identity are always checked; rank, tp, revision and layer_ids only where given.

    `sample` blocks a file are read and compared with their checksums, or all with `full`. With a checkpoint
    the rows of those blocks are compared with its bytes too.
    """

    directory: Path
    rank: int | None = None
    tp: int | None = None
    revision: str | None = None
    layer_ids: tuple[int, ...] | None = None
    sample: int = 0
    full: bool = False
    checkpoint: Checkpoint | None = None
    allow_buffered: bool = False
    workers: int = 4
    seed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileReport:
    name: str
    header: TableHeader
    num_blocks: int
    checked_blocks: int
    compared_rows: int


def verify_tables(request: VerifyRequest, progress: PackProgress | None = None) -> list[FileReport]:
    """One report a file. Raises at the first fault, with file, block or row, and what was expected."""
    progress = progress or NoProgress()
    manifest = read_manifest(request.directory)
    _expect_manifest(request, manifest)
    files = _choose_files(request, manifest)
    headers = [check_header(request.directory, file, manifest) for file in files]
    chosen = [_choose_blocks(request, file) for file in files]
    num_bytes = sum(
        file.block_range(block)[1] for file, blocks in zip(files, chosen, strict=True) for block in blocks
    )
    progress.start(total_bytes=num_bytes, done_bytes=0)
    return [
        _verify_blocks(request, file, header, blocks, progress)
        for file, header, blocks in zip(files, headers, chosen, strict=True)
    ]


def check_header(directory: Path, file: ManifestFile, manifest: Manifest) -> TableHeader:
    """Header and size of one packed file, against the manifest's entry and its revision."""
    path = directory / file.name
    refuse_special_file(path)
    with naming_disk_errors("read", path), path.open("rb") as stream:
        raw, file_bytes = stream.read(HEADER_BYTES), os.fstat(stream.fileno()).st_size
    header = parse_header(raw, str(path))
    if (header.layer_id, header.rank, header.tp) != (file.layer_id, file.rank, file.tp):
        raise TableMismatchError(
            f"the file must hold layer {file.layer_id}, rank {file.rank} of {file.tp}, as its name says, "
            f"got layer {header.layer_id}, rank {header.rank} of {header.tp} ({path}).",
            hint="files were renamed or swapped; put the right one back, or " + REPACK_HINT,
        )
    if header.source_revision != manifest.source_revision:
        raise TableMismatchError(
            f"source_revision must be {manifest.source_revision}, as the manifest says, "
            f"got {header.source_revision} ({path}).",
            hint=REPACK_HINT,
        )
    if header.table_id.hex() != file.table_id:
        raise TableMismatchError(
            f"table_id must be {file.table_id}, as the manifest says, got {header.table_id.hex()} ({path}).",
            hint=REPACK_HINT,
        )
    for where, num_bytes in (("manifest", file.file_bytes), ("disk", file_bytes)):
        if num_bytes != header.file_bytes:
            raise TableFormatError(
                f"the file must be {header.file_bytes} bytes, as its header says, "
                f"got {num_bytes} on the {where} ({path}).",
                hint="the file was cut or grown; " + REPACK_HINT,
            )
    return header


def _expect_manifest(request: VerifyRequest, manifest: Manifest) -> None:
    wanted = request.checkpoint.revision if request.checkpoint is not None else request.revision
    if request.revision is not None and request.revision != wanted:
        raise TableMismatchError(
            f"--revision must be {wanted}, the checkpoint's, got {request.revision} (command line).",
            hint="leave --revision out when --checkpoint is given",
        )
    if wanted is not None and manifest.source_revision != wanted:
        raise TableMismatchError(
            f"the tables must come from revision {wanted}, "
            f"got {manifest.source_revision} ({request.directory}).",
            hint="pack the tables of this revision into another folder: sparkctl engram pack",
        )


def _choose_files(request: VerifyRequest, manifest: Manifest) -> list[ManifestFile]:
    """All of the manifest's, or those asked for; one that is asked for and missing is an error."""
    if request.tp is None and request.rank is None:
        files = [f for f in manifest.files if request.layer_ids is None or f.layer_id in request.layer_ids]
        missing = set(request.layer_ids or ()) - {file.layer_id for file in files}
        if files and missing:
            held = sorted({file.layer_id for file in manifest.files})
            raise TableMismatchError(
                f"layers {sorted(missing)} must be in the manifest, got {held} ({request.directory}).",
                hint=f"pack them: sparkctl engram pack --layers {','.join(map(str, sorted(missing)))}",
            )
        if files:
            return files
    layer_ids = request.layer_ids or tuple(sorted({file.layer_id for file in manifest.files})) or (0,)
    tp = request.tp if request.tp is not None else _only_tp(request, manifest)
    if request.rank is not None and request.rank >= tp:
        raise TableMismatchError(
            f"--rank must be below --tp {tp}, got {request.rank} ({request.directory}).",
            hint="ranks count from 0",
        )
    ranks = range(tp) if request.rank is None else (request.rank,)
    found = []
    for layer_id in layer_ids:
        for rank in ranks:
            name = table_file_name(layer_id, rank, tp)
            file = manifest.find(name)
            if file is None:
                known = ", ".join(file.name for file in manifest.files) or "none"
                raise TableMismatchError(
                    f"{name} must be in the manifest, got {known} ({request.directory}).",
                    hint=f"pack it: sparkctl engram pack --tp {tp} --rank {rank}",
                )
            found.append(file)
    return found


def _only_tp(request: VerifyRequest, manifest: Manifest) -> int:
    splits = {file.tp for file in manifest.files}
    if len(splits) == 1:
        return splits.pop()
    raise TableMismatchError(
        f"--tp must be given where a folder holds several splits or none, got {sorted(splits)} "
        f"({request.directory}).",
        hint="pass --tp with the number of ranks that share the tables",
    )


def _choose_blocks(request: VerifyRequest, file: ManifestFile) -> list[int]:
    if request.full or request.sample >= file.num_blocks:
        return list(range(file.num_blocks))
    return sorted(random.Random(request.seed).sample(range(file.num_blocks), request.sample))


def _verify_blocks(
    request: VerifyRequest,
    file: ManifestFile,
    header: TableHeader,
    blocks: list[int],
    progress: PackProgress,
) -> FileReport:
    compared = 0
    with ExitStack() as stack:
        checker = _BlockChecker(request, file, header, stack)
        pool = stack.enter_context(ThreadPoolExecutor(request.workers, thread_name_prefix="verify"))
        for num_bytes, num_rows in pool.map(checker.check, _runs(blocks)):
            progress.advance(num_bytes)
            compared += num_rows
    return FileReport(
        name=file.name,
        header=header,
        num_blocks=file.num_blocks,
        checked_blocks=len(blocks),
        compared_rows=compared,
    )


class _BlockChecker:
    """Open files and one buffer per thread; `stack` closes the files."""

    def __init__(
        self, request: VerifyRequest, file: ManifestFile, header: TableHeader, stack: ExitStack
    ) -> None:
        self._file = file
        self._path = request.directory / file.name
        buffered = request.allow_buffered
        self._packed = stack.enter_context(DirectFile(self._path, os.O_RDONLY, allow_buffered=buffered))
        self._comparer: RowComparer | None = None
        if request.checkpoint is not None:
            planes = request.checkpoint.table(header.layer_id)
            self._comparer = stack.enter_context(RowComparer(header, planes, allow_buffered=buffered))
        self._local = threading.local()

    def check(self, run: tuple[int, int]) -> tuple[int, int]:
        """(bytes read, rows compared) of blocks [first, end); at most a chunk of them."""
        offset, _ = self._file.block_range(run[0])
        last_offset, last_bytes = self._file.block_range(run[1] - 1)
        num_bytes = last_offset + last_bytes - offset
        data = self._packed.read_range(self._buffer(), offset, num_bytes)
        for block in range(*run):
            start = (block - run[0]) * BLOCK_BYTES
            if block_checksum(data[start : start + BLOCK_BYTES]) != self._file.checksum(block):
                raise TableFormatError(
                    f"the MiB at byte {offset + start} must have the manifest's checksum, "
                    f"got other bytes ({self._path}).",
                    hint="the file is damaged; " + REPACK_HINT,
                )
        if self._comparer is None:
            return num_bytes, 0
        return num_bytes, self._comparer.compare(self._path, data, (offset - HEADER_BYTES) // PAGE_BYTES)

    def _buffer(self) -> AlignedBuffer:
        buffer: AlignedBuffer | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = AlignedBuffer(_CHUNK_BYTES + 2 * ALIGNMENT_BYTES)
        return buffer


def _runs(blocks: list[int]) -> Iterator[tuple[int, int]]:
    """[first, end) of neighbouring blocks, each run of at most a chunk's size."""
    longest = _CHUNK_BYTES // BLOCK_BYTES
    start = 0
    for idx in range(1, len(blocks) + 1):
        if idx == len(blocks) or blocks[idx] != blocks[idx - 1] + 1 or idx - start == longest:
            yield blocks[start], blocks[idx - 1] + 1
            start = idx
