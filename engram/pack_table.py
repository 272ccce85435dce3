"""Checkpoint planes -> packed files, streaming, resumable and atomic."""

import fcntl
import os
import re
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from engram.checkpoint import Checkpoint
from engram.direct_file import naming_disk_errors
from engram.errors import PackError, TableFormatError
from engram.manifest import MANIFEST_NAME, Manifest, new_manifest, read_manifest, write_manifest
from engram.pack_chunk import ChunkPacker
from engram.pack_plan import FilePlan, order_chunks, plan_files
from engram.partial_file import PartialFile
from engram.table_format import HEADER_BYTES, parse_header

# 16 MiB keeps an NVMe drive's queues full from one request; 4 workers of 3 such buffers stay below 150 MiB.
CHUNK_BYTES: Final = 16 << 20
WORKERS: Final = 4
# A kill costs at most this much work; more often would stall the pipeline for the drive's flushes.
SYNC_BYTES: Final = 1 << 30
# Room for manifest, journals and the filesystem's own metadata.
SPARE_BYTES: Final = 64 << 20


class PackProgress(Protocol):
    """Told from the packing thread; must not block."""

    def start(self, *, total_bytes: int, done_bytes: int) -> None: ...

    def advance(self, num_bytes: int) -> None: ...


class NoProgress:
    def start(self, *, total_bytes: int, done_bytes: int) -> None:
        pass

    def advance(self, num_bytes: int) -> None:
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRequest:
    checkpoint: Checkpoint
    directory: Path
    source_repo: str
    tp: int
    ranks: tuple[int, ...]
    layer_ids: tuple[int, ...]
    allow_buffered: bool = False
    restart: bool = False
    chunk_bytes: int = CHUNK_BYTES
    sync_bytes: int = SYNC_BYTES
    workers: int = WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """Bytes are of packed pages; skipped ones were finished by an earlier run."""

    files: tuple[Path, ...]
    packed_bytes: int
    skipped_bytes: int
    seconds: float
    is_direct: bool


def pack_tables(request: PackRequest, progress: PackProgress) -> PackReport:
    """Packs every (layer, rank) asked for; what an earlier run finished is not packed again.

    Blocks for as long as the disk needs. Raises PackError, CheckpointError, DiskError or TableFormatError;
    after any of them, and after kill -9, the same call goes on where the last sync left off.
    """
    started = time.monotonic()
    _expect_repo_name(request.source_repo)
    with naming_disk_errors("create the folder", request.directory):
        request.directory.mkdir(parents=True, exist_ok=True)
    with _only_packer(request.directory):
        plans = plan_files(
            request.checkpoint,
            tp=request.tp,
            ranks=request.ranks,
            layer_ids=request.layer_ids,
            chunk_bytes=request.chunk_bytes,
        )
        manifest = _open_manifest(request, plans)
        work = _find_work(request, plans, manifest)
        if work:
            _require_room(request.directory, work)
        total = sum(plan.header.file_bytes - HEADER_BYTES for plan in plans)
        packed, is_direct = 0, True
        skipped = total - sum(_left_bytes(partial) for partial in work)
        progress.start(total_bytes=total, done_bytes=skipped)
        if work:
            packed, is_direct = _pack_all(request, work, manifest, progress)
        return PackReport(
            files=tuple(request.directory / plan.header.file_name for plan in plans),
            packed_bytes=packed,
            skipped_bytes=skipped,
            seconds=time.monotonic() - started,
            is_direct=is_direct,
        )


def _expect_repo_name(source_repo: str) -> None:
    """The manifest, written last, must be able to hold it."""
    if not re.fullmatch(r"[!-~]{1,200}", source_repo):
        raise PackError(
            f"--repo must be 1 to 200 ASCII characters without blanks, got {source_repo!r} (command line).",
            hint="leave it out, or name the repository as in organisation/model",
        )


@contextmanager
def _only_packer(directory: Path) -> Iterator[None]:
    """Two packers in one folder would write each other's files."""
    path = directory / ".pack.lock"
    with naming_disk_errors("open the lock", path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise PackError(
                f"the folder must belong to one packing run, got another still at work ({directory}).",
                hint="wait for it, or stop it and run this command again: it goes on where the other stopped",
            ) from error
        yield
    finally:
        os.close(fd)


def _open_manifest(request: PackRequest, plans: list[FilePlan]) -> Manifest:
    fresh = new_manifest(source_repo=request.source_repo, source_revision=request.checkpoint.revision)
    if not (request.directory / MANIFEST_NAME).exists():
        return fresh
    names = {plan.header.file_name for plan in plans}
    try:
        found = read_manifest(request.directory)
    except TableFormatError:
        if request.restart:
            return fresh
        raise
    if (found.source_repo, found.source_revision) == (fresh.source_repo, fresh.source_revision):
        return found
    if request.restart and {file.name for file in found.files} <= names:
        # The old files go too; their manifest must not outlive them.
        with naming_disk_errors("remove", request.directory / MANIFEST_NAME):
            (request.directory / MANIFEST_NAME).unlink()
        return fresh
    raise PackError(
        f"the folder must hold tables of {fresh.source_repo}@{fresh.source_revision} only, "
        f"got {found.source_repo}@{found.source_revision} ({request.directory}).",
        hint="pack into another folder, or remove the old tables first",
    )


def _find_work(request: PackRequest, plans: list[FilePlan], manifest: Manifest) -> list[PartialFile]:
    """The files that are not whole yet."""
    work: list[PartialFile] = []
    for plan in plans:
        partial = PartialFile(request.directory, plan)
        if request.restart:
            partial.discard()
            work.append(partial)
            continue
        partial.find_leftovers()
        is_whole = partial.final_path.exists()
        if is_whole and _is_finished(partial, manifest):
            partial.forget_journal()
        else:
            work.append(partial)
    return work


def _is_finished(partial: PartialFile, manifest: Manifest) -> bool:
    """Whether the final file is this plan's and in the manifest. False: only its entry is missing."""
    header = partial.plan.header
    with naming_disk_errors("read", partial.final_path), partial.final_path.open("rb") as file:
        found = parse_header(file.read(HEADER_BYTES), str(partial.final_path))
        file_bytes = os.fstat(file.fileno()).st_size
    if found == header and file_bytes != header.file_bytes:
        raise PackError(
            f"the packed file must be {header.file_bytes} bytes, as its header says, "
            f"got {file_bytes} ({partial.final_path}).",
            hint="it was cut or grown; pack it again: the same command with --restart",
        )
    entry = manifest.find(header.file_name)
    if found == header and entry is not None and entry.table_id == header.table_id.hex():
        return True
    if found == header and partial.num_done == partial.plan.num_chunks:
        return False
    what = "another table" if found != header else "one that the manifest does not name"
    raise PackError(
        f"the packed file must be this checkpoint's or absent, got {what} ({partial.final_path}).",
        hint="pack into another folder, or replace it: the same command with --restart",
    )


def _require_room(directory: Path, work: list[PartialFile]) -> None:
    needed = SPARE_BYTES + sum(
        partial.plan.header.file_bytes - partial.allocated_bytes()
        for partial in work
        if not partial.final_path.exists()
    )
    with naming_disk_errors("statvfs", directory):
        stat = os.statvfs(directory)
    free = stat.f_bavail * stat.f_frsize
    if needed > free:
        raise PackError(
            f"free space must be {needed} bytes ({needed / 2**30:.1f} GiB) for the packed tables, "
            f"got {free} bytes ({free / 2**30:.1f} GiB) ({directory}).",
            hint="free space on this disk, or pass --out on another one, or a larger --tp",
        )


def _left_bytes(partial: PartialFile) -> int:
    plan = partial.plan
    return sum(plan.chunk_num_bytes(idx) for idx in range(partial.num_done, plan.num_chunks))


def _pack_all(
    request: PackRequest, partials: list[PartialFile], manifest: Manifest, progress: PackProgress
) -> tuple[int, bool]:
    """(packed bytes, whether all I/O went past the page cache)."""
    growing = [partial for partial in partials if not partial.final_path.exists()]
    packer = ChunkPacker([partial.plan for partial in partials], allow_buffered=request.allow_buffered)
    try:
        for partial in growing:
            partial.open(allow_buffered=request.allow_buffered)
        is_direct = packer.is_direct and all(partial.file.is_direct for partial in growing)
        packed = _run_chunks(request, packer, growing, progress)
        for partial in partials:
            entry = partial.finish() if partial in growing else partial.describe()
            manifest = manifest.with_file(entry)
            with naming_disk_errors("write", request.directory / MANIFEST_NAME):
                write_manifest(request.directory, manifest)
            partial.forget_journal()
        return packed, is_direct
    finally:
        packer.close()
        for partial in growing:
            partial.close()


def _run_chunks(
    request: PackRequest, packer: ChunkPacker, partials: list[PartialFile], progress: PackProgress
) -> int:
    plans, next_chunks = [partial.plan for partial in partials], [partial.num_done for partial in partials]
    order = deque(order_chunks(plans, next_chunks))
    running: deque[tuple[PartialFile, int, Future[bytes]]] = deque()
    packed = unsynced = 0
    pool = ThreadPoolExecutor(request.workers, thread_name_prefix="pack")
    try:
        # Enough queued chunks that the workers stay busy while this thread waits for a sync.
        while order or running:
            while order and len(running) < 4 * request.workers:
                plan_idx, chunk_idx = order.popleft()
                partial = partials[plan_idx]
                future = pool.submit(packer.pack, partial.plan, chunk_idx, partial.file)
                running.append((partial, chunk_idx, future))
            partial, chunk_idx, future = running.popleft()
            partial.record(chunk_idx, future.result())
            num_bytes = partial.plan.chunk_num_bytes(chunk_idx)
            packed, unsynced = packed + num_bytes, unsynced + num_bytes
            progress.advance(num_bytes)
            if unsynced >= request.sync_bytes:
                unsynced = 0
                for each in partials:
                    each.sync()
                packer.drop_cache()
        return packed
    finally:
        pool.shutdown(cancel_futures=True)
