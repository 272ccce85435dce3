"""What of a half-packed file is on the disk for good; it survives kill -9 and a power cut.

Text, one record a line. The first names the job; each further one names a chunk whose bytes were synced
before the record was written: its index, its block checksums (base64) and a CRC of the line. A torn last line
is dropped.
"""

import base64
import binascii
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from engram.direct_file import naming_disk_errors
from engram.errors import PackError
from engram.pack_plan import FilePlan
from engram.write_file import sync_directory, write_atomically

RESTART_HINT = "pack this file from the start: the same command with --restart"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """checksums[i] holds those of chunk i's blocks; chunks finish in order, so the list is all there is."""

    path: Path
    checksums: list[bytes]

    def append(self, chunks: Iterable[tuple[int, bytes]]) -> None:
        """Records (chunk index, checksums) that are already synced; on the disk when this returns."""
        lines = []
        for chunk_idx, checksums in chunks:
            if chunk_idx != len(self.checksums):
                raise AssertionError(f"chunk {chunk_idx} after {len(self.checksums)} chunks")
            self.checksums.append(checksums)
            lines.append(_format_line(chunk_idx, checksums))
        with naming_disk_errors("append to the journal", self.path), self.path.open("ab") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())

    def remove(self) -> None:
        with naming_disk_errors("remove the journal", self.path):
            self.path.unlink(missing_ok=True)
            sync_directory(self.path.parent)


def start_journal(path: Path, plan: FilePlan) -> Journal:
    """Replaces any journal that is there."""
    with naming_disk_errors("write the journal", path):
        write_atomically(path, _describe_job(plan))
    return Journal(path=path, checksums=[])


def resume_journal(path: Path, plan: FilePlan) -> Journal | None:
    """The journal of the same job, cut back to its whole records; None when there is none."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PackError(
            f"the journal must be readable, got {error.strerror} ({path}).", hint=RESTART_HINT
        ) from error
    first = _describe_job(plan)
    if not content.startswith(first):
        raise PackError(
            "the half-packed file must come from the same checkpoint, revision and settings, "
            f"got one of another job ({path}).",
            hint=RESTART_HINT,
        )
    checksums: list[bytes] = []
    good_bytes = len(first)
    for line in content[len(first) :].splitlines(keepends=True):
        parsed = _parse_line(line)
        if parsed is None or parsed[0] != len(checksums) or len(checksums) >= plan.num_chunks:
            break
        checksums.append(parsed[1])
        good_bytes += len(line)
    # A torn tail must go before the next append, or that line would be torn too.
    with naming_disk_errors("cut the journal", path), path.open("r+b") as file:
        file.truncate(good_bytes)
        os.fsync(file.fileno())
    return Journal(path=path, checksums=checksums)


def _describe_job(plan: FilePlan) -> bytes:
    """All that must be the same for the finished chunks to be of use."""
    planes = {}
    for name, plane in (("weight", plan.planes.weight), ("scale", plan.planes.scale)):
        with naming_disk_errors("stat", plane.path):
            stat = plane.path.stat()
        planes[name] = [plane.path.name, stat.st_size, stat.st_mtime_ns, plane.offset_bytes]
    job = {"table_id": plan.header.table_id.hex(), "chunk_bytes": plan.chunk_bytes, "source": planes}
    return json.dumps(job).encode("ascii") + b"\n"


def _format_line(chunk_idx: int, checksums: bytes) -> bytes:
    body = b"%d %s" % (chunk_idx, base64.b64encode(checksums))
    return b"%s %08x\n" % (body, zlib.crc32(body))


def _parse_line(line: bytes) -> tuple[int, bytes] | None:
    body, _, crc = line.removesuffix(b"\n").rpartition(b" ")
    if not line.endswith(b"\n") or crc != b"%08x" % zlib.crc32(body):
        return None
    index, _, checksums = body.partition(b" ")
    try:
        return int(index), base64.b64decode(checksums, validate=True)
    except (ValueError, binascii.Error):
        return None
