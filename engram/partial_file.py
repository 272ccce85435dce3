"""A packed file while it grows: NAME.partial and NAME.journal; renamed to NAME when all is on the disk."""

import os
from pathlib import Path

from engram.direct_file import AlignedBuffer, DirectFile, naming_disk_errors
from engram.errors import PackError
from engram.manifest import BLOCK_BYTES, CHECKSUM_BYTES, ManifestFile, block_checksum
from engram.pack_journal import RESTART_HINT, Journal, resume_journal, start_journal
from engram.pack_plan import FilePlan
from engram.table_format import HEADER_BYTES, pack_header
from engram.write_file import sync_directory


class PartialFile:
    """Chunks are recorded in order by one thread; the bytes may be written by any.

    The header goes in last: until then the file has no magic, and nothing can mistake it for a whole one.
    """

    def __init__(self, directory: Path, plan: FilePlan) -> None:
        self.plan = plan
        self.path = directory / f"{plan.header.file_name}.partial"
        self.final_path = directory / plan.header.file_name
        self._journal_path = directory / f"{plan.header.file_name}.journal"
        self._journal: Journal | None = None
        self._file: DirectFile | None = None
        self._unsynced: list[tuple[int, bytes]] = []

    @property
    def file(self) -> DirectFile:
        if self._file is None:
            raise AssertionError("open() comes first")
        return self._file

    @property
    def journal(self) -> Journal:
        if self._journal is None:
            raise AssertionError("find_leftovers() or open() comes first")
        return self._journal

    @property
    def num_done(self) -> int:
        """Chunks that a resumed run need not pack again."""
        return 0 if self._journal is None else len(self._journal.checksums)

    def find_leftovers(self) -> None:
        """Reads the journal of a killed run, if there is one. Changes nothing but the journal's torn tail."""
        self._journal = resume_journal(self._journal_path, self.plan)

    def discard(self) -> None:
        """Forgets everything an earlier run left for this file, a finished one too."""
        with naming_disk_errors("remove", self.path):
            for path in (self.path, self._journal_path, self.final_path):
                path.unlink(missing_ok=True)
            sync_directory(self.path.parent)
        self._journal = None

    def allocated_bytes(self) -> int:
        """Disk space the file already holds."""
        try:
            return min(self.path.stat().st_blocks * 512, self.plan.header.file_bytes)
        except FileNotFoundError:
            return 0

    def open(self, *, allow_buffered: bool) -> None:
        """Reserves the whole file's space, so that a full disk is found now and not hours later."""
        if self.num_done:
            self._expect_whole_leftover()
        flags = os.O_RDWR | os.O_CREAT
        self._file = DirectFile(self.path, flags, allow_buffered=allow_buffered)
        with naming_disk_errors("reserve space", self.path):
            os.ftruncate(self._file.fd, self.plan.header.file_bytes)
            os.posix_fallocate(self._file.fd, 0, self.plan.header.file_bytes)
            sync_directory(self.path.parent)
        if self._journal is None:
            self._journal = start_journal(self._journal_path, self.plan)
        elif self.num_done:
            self._check_last_chunk()

    def record(self, chunk_idx: int, checksums: bytes) -> None:
        self._unsynced.append((chunk_idx, checksums))

    def sync(self) -> None:
        """All recorded chunks survive from here on."""
        if self._unsynced:
            self.file.sync()
            self.journal.append(self._unsynced)
            self._unsynced.clear()

    def finish(self) -> ManifestFile:
        """Header, fsync, rename. The journal stays until the manifest names the file: see forget_journal."""
        self.sync()
        header = AlignedBuffer(HEADER_BYTES)
        header.view[:] = pack_header(self.plan.header)
        self.file.write_at(header.view, 0)
        with naming_disk_errors("fsync", self.path):
            os.fsync(self.file.fd)
        self.close()
        with naming_disk_errors("rename", self.path):
            self.path.replace(self.final_path)
            sync_directory(self.final_path.parent)
        return self.describe()

    def describe(self) -> ManifestFile:
        """The manifest entry, from the journal; all chunks must be done."""
        header = self.plan.header
        return ManifestFile(
            layer_id=header.layer_id,
            rank=header.rank,
            tp=header.tp,
            table_id=header.table_id.hex(),
            file_bytes=header.file_bytes,
            block_checksums=b"".join(self.journal.checksums),
        )

    def forget_journal(self) -> None:
        if self._journal is not None:
            self._journal.remove()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _expect_whole_leftover(self) -> None:
        size = self.path.stat().st_size if self.path.is_file() else None
        if size != self.plan.header.file_bytes:
            seen = "no such file" if size is None else f"{size}"
            raise PackError(
                f"the half-packed file must be {self.plan.header.file_bytes} bytes, as its journal says, "
                f"got {seen} ({self.path}).",
                hint=RESTART_HINT,
            )

    def _check_last_chunk(self) -> None:
        """The journal promises synced bytes; a drive or filesystem that lied shows here."""
        idx = self.num_done - 1
        num_bytes = self.plan.chunk_num_bytes(idx)
        offset = HEADER_BYTES + idx * self.plan.chunk_bytes
        data = self.file.read_range(AlignedBuffer(num_bytes), offset, num_bytes)
        for block in range(-(-num_bytes // BLOCK_BYTES)):
            wanted = self.journal.checksums[idx][block * CHECKSUM_BYTES : (block + 1) * CHECKSUM_BYTES]
            if block_checksum(data[block * BLOCK_BYTES : (block + 1) * BLOCK_BYTES]) != wanted:
                raise PackError(
                    f"the half-packed file must hold what its journal says, got other bytes in the MiB at "
                    f"{offset + block * BLOCK_BYTES} ({self.path}).",
                    hint=RESTART_HINT,
                )
