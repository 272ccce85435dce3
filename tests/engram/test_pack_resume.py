"""kill -9 at any moment, then the same command again: the files come out as if nothing had happened."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from engram.checkpoint import open_checkpoint
from engram.errors import PackError
from engram.manifest import BLOCK_BYTES, read_manifest
from engram.pack_journal import resume_journal, start_journal
from engram.pack_plan import FilePlan, plan_files
from engram.pack_table import PackRequest, pack_tables
from engram.verify_table import VerifyRequest, verify_tables
from tests.engram.test_pack_table import expect_checkpoint_bytes, pack
from tests.engram.tiny_checkpoint import REVISION, TinyCheckpoint, build_checkpoint, scaled_config

# Small chunks, a sync after each, one worker: hundreds of moments to die at.
PACK = """
import sys
from pathlib import Path
from engram.checkpoint import open_checkpoint
from engram.pack_table import NoProgress, PackRequest, pack_tables
checkpoint = open_checkpoint(Path(sys.argv[1]), revision="a" * 40)
print("packing", flush=True)
pack_tables(PackRequest(checkpoint=checkpoint, directory=Path(sys.argv[2]), source_repo="x", tp=2,
    ranks=(0, 1), layer_ids=(1, 2), allow_buffered=True, chunk_bytes=1 << 20, sync_bytes=1 << 20,
    workers=2), NoProgress())
print("done", flush=True)
"""


class StopAfter:
    """Progress that ends the run from inside, as a full disk or Ctrl-C would."""

    def __init__(self, num_chunks: int) -> None:
        self.left = num_chunks
        self.done_bytes = 0

    def start(self, *, total_bytes: int, done_bytes: int) -> None:
        self.done_bytes = done_bytes

    def advance(self, num_bytes: int) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """Two layers of 36 MB."""
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"), scaled_config(vocab_size=45_000))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """One layer of 5 MB: five chunks of 1 MiB."""
    config = scaled_config(vocab_size=6000, layer_ids=(1,))
    return build_checkpoint(tmp_path_factory.mktemp("small"), config)


def _start(tiny: TinyCheckpoint, directory: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PACK, str(tiny.directory), str(directory)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "packing\n"
    return process


def test_kill_at_random_moments_then_resume(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with _start(tiny, whole) as process:
        started = time.monotonic()
        process.communicate(timeout=60)
    assert process.returncode == 0
    seconds = time.monotonic() - started
    rng = np.random.default_rng()
    killed = tmp_path / "killed"
    num_kills = 0
    for _ in range(8):
        with _start(tiny, killed) as process:
            time.sleep(rng.uniform(0, seconds / 3))
            process.send_signal(signal.SIGKILL)
            num_kills += process.wait() == -signal.SIGKILL
        # A file under its final name is whole, at every moment.
        for path in killed.glob("*.engram"):
            assert path.read_bytes() == (whole / path.name).read_bytes()
    assert num_kills > 0
    with _start(tiny, killed) as process:
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert sorted(path.name for path in killed.iterdir()) == sorted(path.name for path in whole.iterdir())
    for path in whole.iterdir():
        assert (killed / path.name).read_bytes() == path.read_bytes()
    checkpoint = open_checkpoint(tiny.directory, revision=REVISION)
    verify_tables(VerifyRequest(directory=killed, full=True, checkpoint=checkpoint, allow_buffered=True))


@pytest.mark.parametrize("num_chunks", [1, 2, 4, 5])
def test_resume_keeps_what_was_synced(small: TinyCheckpoint, tmp_path: Path, num_chunks: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        _pack_until(small, tmp_path, num_chunks)
    assert not list(tmp_path.glob("*.engram"))
    report = pack(small, tmp_path)
    # The chunk whose advance() raised was recorded but not synced.
    assert report.skipped_bytes == (num_chunks - 1) * BLOCK_BYTES
    expect_checkpoint_bytes(small, tmp_path, 1)


def _pack_until(small: TinyCheckpoint, directory: Path, num_chunks: int) -> None:
    request = PackRequest(
        checkpoint=open_checkpoint(small.directory, revision=REVISION),
        directory=directory,
        source_repo="deepseek-ai/DeepSeek-V4.1-Flash",
        tp=1,
        ranks=(0,),
        layer_ids=(1,),
        allow_buffered=True,
        chunk_bytes=BLOCK_BYTES,
        sync_bytes=BLOCK_BYTES,
    )
    pack_tables(request, StopAfter(num_chunks))


@pytest.fixture
def stopped(small: TinyCheckpoint, tmp_path: Path) -> Path:
    """A folder with three of five chunks on the disk."""
    with pytest.raises(KeyboardInterrupt):
        _pack_until(small, tmp_path, 4)
    return tmp_path


def test_restart_forgets_them(small: TinyCheckpoint, stopped: Path) -> None:
    assert pack(small, stopped, restart=True).skipped_bytes == 0
    expect_checkpoint_bytes(small, stopped, 1)


def test_other_bytes_than_the_journal_says_are_refused(small: TinyCheckpoint, stopped: Path) -> None:
    with (stopped / "layer-01.rank-0of1.engram.partial").open("r+b") as file:
        file.seek(4096 + 3 * BLOCK_BYTES - 1)
        last = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([last ^ 1]))
    with pytest.raises(PackError, match="hold what its journal says"):
        pack(small, stopped)


@pytest.mark.parametrize("size", [None, 4096 + 2 * BLOCK_BYTES])
def test_lost_or_cut_leftover_is_refused(small: TinyCheckpoint, stopped: Path, size: int | None) -> None:
    partial = stopped / "layer-01.rank-0of1.engram.partial"
    if size is None:
        partial.unlink()
    else:
        with partial.open("r+b") as file:
            file.truncate(size)
    with pytest.raises(PackError, match="as its journal says"):
        pack(small, stopped)


def test_leftovers_of_a_changed_source_are_refused(tmp_path: Path) -> None:
    small = build_checkpoint(tmp_path / "checkpoint", scaled_config(vocab_size=6000, layer_ids=(1,)))
    with pytest.raises(KeyboardInterrupt):
        _pack_until(small, tmp_path / "tables", 3)
    build_checkpoint(tmp_path / "checkpoint", small.config, seed=1)
    with pytest.raises(PackError, match="got one of another job"):
        pack(small, tmp_path / "tables")


def test_renamed_but_not_in_the_manifest(small: TinyCheckpoint, tmp_path: Path) -> None:
    """Killed between the rename and the manifest: the journal still holds the checksums."""
    pack(small, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        _pack_until(small, tmp_path / "cut", 1)
    plan = _plan(small)
    journal = start_journal(tmp_path / "cut" / "layer-01.rank-0of1.engram.journal", plan)
    entry = read_manifest(tmp_path / "whole").files[0]
    journal.append((idx, entry.checksum(idx)) for idx in range(plan.num_chunks))
    (tmp_path / "cut" / "layer-01.rank-0of1.engram.partial").unlink()
    name = "layer-01.rank-0of1.engram"
    (tmp_path / "cut" / name).write_bytes((tmp_path / "whole" / name).read_bytes())
    assert pack(small, tmp_path / "cut").packed_bytes == 0
    assert read_manifest(tmp_path / "cut") == read_manifest(tmp_path / "whole")
    assert not list((tmp_path / "cut").glob("*.journal"))


def _plan(small: TinyCheckpoint) -> FilePlan:
    checkpoint = open_checkpoint(small.directory, revision=REVISION)
    return plan_files(checkpoint, tp=1, ranks=(0,), layer_ids=(1,), chunk_bytes=BLOCK_BYTES)[0]


def test_torn_journal_is_cut_back_at_every_byte(small: TinyCheckpoint, tmp_path: Path) -> None:
    plan = _plan(small)
    path = tmp_path / "x.journal"
    journal = start_journal(path, plan)
    first_bytes = path.stat().st_size
    journal.append((idx, bytes([idx]) * 16) for idx in range(3))
    content = path.read_bytes()
    line_bytes = (len(content) - first_bytes) // 3
    for cut in range(first_bytes, len(content) + 1):
        path.write_bytes(content[:cut])
        resumed = resume_journal(path, plan)
        assert resumed is not None
        assert len(resumed.checksums) == (cut - first_bytes) // line_bytes
        resumed.append([(len(resumed.checksums), b"n" * 16)])
        again = resume_journal(path, plan)
        assert again is not None
        assert again.checksums == resumed.checksums


def test_flipped_journal_byte_ends_it(small: TinyCheckpoint, tmp_path: Path) -> None:
    plan = _plan(small)
    path = tmp_path / "x.journal"
    journal = start_journal(path, plan)
    first_bytes = path.stat().st_size
    journal.append((idx, bytes([idx]) * 16) for idx in range(3))
    content = path.read_bytes()
    line_bytes = (len(content) - first_bytes) // 3
    for at in range(first_bytes + line_bytes, first_bytes + 2 * line_bytes):
        flipped = bytearray(content)
        flipped[at] ^= 1
        path.write_bytes(flipped)
        resumed = resume_journal(path, plan)
        assert resumed is not None
        assert len(resumed.checksums) == 1
