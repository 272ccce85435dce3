"""Every byte of the packed files against the checkpoint, for every split."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engram import _core
from engram.checkpoint import open_checkpoint
from engram.errors import DiskError, PackError
from engram.manifest import BLOCK_BYTES, block_checksum, read_manifest
from engram.pack_table import NoProgress, PackReport, PackRequest, pack_tables
from engram.table_format import HEADER_BYTES, PAGE_BYTES, parse_header
from tests.engram.read_packed import read_packed_rows
from tests.engram.tiny_checkpoint import (
    OTHER_REVISION,
    REVISION,
    TinyCheckpoint,
    build_checkpoint,
    scaled_config,
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    """About 45,000 rows of 33 bytes a layer: 1.5 MB, so that files have several blocks."""
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"), scaled_config(vocab_size=3000))


def make_request(tiny: TinyCheckpoint, directory: Path, **changes) -> PackRequest:
    fields = {
        "checkpoint": open_checkpoint(tiny.directory, revision=REVISION),
        "directory": directory,
        "source_repo": "deepseek-ai/DeepSeek-V4.1-Flash",
        "tp": 1,
        "ranks": (0,),
        "layer_ids": tiny.config.engram_layer_ids,
        "chunk_bytes": BLOCK_BYTES,
        # The test folder may be on a filesystem without O_DIRECT; test_pack_disk.py is about that.
        "allow_buffered": True,
    }
    return PackRequest(**(fields | changes))


def pack(tiny: TinyCheckpoint, directory: Path, **changes) -> PackReport:
    return pack_tables(make_request(tiny, directory, **changes), NoProgress())


def expect_checkpoint_bytes(tiny: TinyCheckpoint, directory: Path, tp: int) -> None:
    """Together the ranks' files hold each row of each layer exactly once, equal to the checkpoint's."""
    for layer_id in tiny.config.engram_layer_ids:
        wanted = tiny.rows(layer_id)
        seen = np.zeros(len(wanted), dtype=np.int64)
        for rank in range(tp):
            columns = read_packed_rows(directory / f"layer-{layer_id:02d}.rank-{rank}of{tp}.engram")
            for first_row, rows in columns.items():
                assert np.array_equal(rows, wanted[first_row : first_row + len(rows)])
                seen[first_row : first_row + len(rows)] += 1
        assert (seen == 1).all()


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_every_byte_for_every_tp(tiny: TinyCheckpoint, tmp_path: Path, tp: int) -> None:
    report = pack(tiny, tmp_path, tp=tp, ranks=tuple(range(tp)))
    expect_checkpoint_bytes(tiny, tmp_path, tp)
    assert len(report.files) == 2 * tp
    assert report.packed_bytes == sum(path.stat().st_size - HEADER_BYTES for path in report.files)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [".pack.lock", "manifest.json", *(path.name for path in report.files)]
    )


def test_nodes_that_pack_their_own_rank_make_the_same_files(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    pack(tiny, tmp_path / "all", tp=3, ranks=(0, 1, 2))
    for rank in range(3):
        report = pack(tiny, tmp_path / f"node{rank}", tp=3, ranks=(rank,))
        for path in report.files:
            assert path.read_bytes() == (tmp_path / "all" / path.name).read_bytes()


def test_released_row_size(tmp_path: Path) -> None:
    """256 + 8 bytes, 15 rows a page, through the copy loop of fixed size."""
    config = scaled_config(vocab_size=150, head_dim=256)
    tiny = build_checkpoint(tmp_path / "checkpoint", config)
    pack(tiny, tmp_path / "tables", tp=2, ranks=(0, 1))
    expect_checkpoint_bytes(tiny, tmp_path / "tables", 2)
    raw = (tmp_path / "tables" / "layer-01.rank-0of2.engram").read_bytes()
    header = parse_header(raw, "test")
    assert (header.row_bytes, header.rows_per_page) == (264, 15)
    row = tiny.rows(1)[16].tobytes()
    assert raw[4096 + 4096 + 264 : 4096 + 4096 + 2 * 264] == row


def test_manifest_names_source_and_blocks(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    report = pack(tiny, tmp_path, tp=3, ranks=(1,))
    manifest = read_manifest(tmp_path)
    assert manifest.source_repo == "deepseek-ai/DeepSeek-V4.1-Flash"
    assert manifest.source_revision == REVISION
    assert [file.name for file in manifest.files] == [path.name for path in report.files]
    for path in report.files:
        raw = path.read_bytes()
        entry = manifest.find(path.name)
        assert entry is not None
        header = parse_header(raw, path.name)
        assert (entry.layer_id, entry.rank, entry.tp) == (header.layer_id, 1, 3)
        assert entry.file_bytes == header.file_bytes == len(raw)
        assert entry.table_id == header.table_id.hex()
        blocks = [raw[at : at + BLOCK_BYTES] for at in range(HEADER_BYTES, len(raw), BLOCK_BYTES)]
        assert [entry.checksum(idx) for idx in range(entry.num_blocks)] == [block_checksum(b) for b in blocks]


def test_further_ranks_join_the_manifest(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    for rank in (1, 0):
        pack(tiny, tmp_path, tp=2, ranks=(rank,))
    assert len(read_manifest(tmp_path).files) == 4
    expect_checkpoint_bytes(tiny, tmp_path, 2)


def test_finished_files_are_not_packed_again(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    first = pack(tiny, tmp_path, tp=2, ranks=(0,))
    stamps = [path.stat().st_mtime_ns for path in first.files]
    second = pack(tiny, tmp_path, tp=2, ranks=(0,))
    assert (second.packed_bytes, second.skipped_bytes) == (0, first.packed_bytes)
    assert [path.stat().st_mtime_ns for path in second.files] == stamps


def test_a_finished_file_that_was_cut_is_not_called_done(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    path = pack(tiny, tmp_path, tp=2, ranks=(0,)).files[0]
    size = path.stat().st_size
    os.truncate(path, size - PAGE_BYTES)
    with pytest.raises(PackError, match=rf"must be {size} bytes.* got {size - PAGE_BYTES} \(.*{path.name}"):
        pack(tiny, tmp_path, tp=2, ranks=(0,))
    pack(tiny, tmp_path, tp=2, ranks=(0,), restart=True)
    assert path.stat().st_size == size


def test_a_layer_named_twice_is_packed_once(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    assert len(pack(tiny, tmp_path, layer_ids=(1, 1)).files) == 1
    assert [file.layer_id for file in read_manifest(tmp_path).files] == [1]


@pytest.mark.parametrize("name", ["", "deepseek-ai/V4.1\xe9", "a b", "x" * 201])
def test_a_repository_that_the_manifest_cannot_hold(tiny: TinyCheckpoint, tmp_path: Path, name: str) -> None:
    with pytest.raises(PackError, match="--repo must be 1 to 200 ASCII"):
        pack(tiny, tmp_path / "tables", source_repo=name)
    assert not (tmp_path / "tables").exists()


def test_without_an_index_shards_are_searched(tmp_path: Path) -> None:
    tiny = build_checkpoint(tmp_path / "checkpoint", with_index=False)
    pack(tiny, tmp_path / "tables")
    expect_checkpoint_bytes(tiny, tmp_path / "tables", 1)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    vocab_size=st.integers(2, 900),
    head_dim=st.sampled_from([32, 64, 96, 256, 1024]),
    tp=st.integers(1, 5),
    extra_bytes=st.integers(0, 9000),
    seed=st.integers(0, 2**32),
)
def test_any_size_any_split(
    tmp_path_factory: pytest.TempPathFactory,
    vocab_size: int,
    head_dim: int,
    tp: int,
    extra_bytes: int,
    seed: int,
) -> None:
    base = tmp_path_factory.mktemp("any")
    config = scaled_config(vocab_size=vocab_size, head_dim=head_dim, layer_ids=(3,))
    tiny = build_checkpoint(base / "checkpoint", config, seed=seed, extra_bytes=extra_bytes)
    pack(tiny, base / "tables", tp=tp, ranks=tuple(range(tp)))
    expect_checkpoint_bytes(tiny, base / "tables", tp)


@given(
    weight_bytes=st.integers(1, 400),
    scale_bytes=st.integers(0, 20),
    first_row=st.integers(0, 40),
    num_rows=st.integers(0, 80),
)
def test_interleave_against_numpy(weight_bytes: int, scale_bytes: int, first_row: int, num_rows: int) -> None:
    page_bytes = 1024
    rows_per_page = page_bytes // (weight_bytes + scale_bytes)
    rng = np.random.default_rng(num_rows)
    weight = rng.integers(0, 256, (num_rows, weight_bytes), dtype=np.uint8)
    scale = rng.integers(0, 256, (num_rows, scale_bytes), dtype=np.uint8)
    num_pages = -(-(first_row + num_rows) // rows_per_page)
    pages = np.full((num_pages, page_bytes), 7, dtype=np.uint8)
    wanted = pages.copy()
    for row in range(num_rows):
        page, slot = divmod(first_row + row, rows_per_page)
        at = slot * (weight_bytes + scale_bytes)
        wanted[page, at : at + weight_bytes + scale_bytes] = np.concatenate([weight[row], scale[row]])
        if slot == rows_per_page - 1:
            wanted[page, at + weight_bytes + scale_bytes :] = 0
    _core.interleave_rows(
        weight, scale, pages, weight_bytes=weight_bytes, scale_bytes=scale_bytes, page_bytes=page_bytes,
        first_row=first_row, num_rows=num_rows,
    )  # fmt: skip
    assert np.array_equal(pages, wanted)


def test_interleave_refuses_short_buffers() -> None:
    shape = {"weight_bytes": 32, "scale_bytes": 1, "page_bytes": 4096, "first_row": 0, "num_rows": 125}
    weight, scale, pages = bytes(32 * 125), bytes(125), bytearray(8192)
    _core.interleave_rows(weight, scale, pages, **shape)
    for short in ((weight[1:], scale, pages), (weight, scale[1:], pages), (weight, scale, pages[1:])):
        with pytest.raises(ValueError, match="too short"):
            _core.interleave_rows(*short, **shape)


def test_bad_tp_and_rank_are_refused(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(PackError, match="--tp must be 1 to 24, got 25"):
        pack(tiny, tmp_path, tp=25)
    with pytest.raises(PackError, match="rank must be 0 to 2 at --tp 3, got 3"):
        pack(tiny, tmp_path, tp=3, ranks=(3,))


def test_another_revision_in_the_folder_is_refused(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    pack(tiny, tmp_path)
    other = open_checkpoint(tiny.directory, revision=OTHER_REVISION)
    with pytest.raises(PackError, match=rf"@{OTHER_REVISION} only, got .*@{REVISION}"):
        pack(tiny, tmp_path, checkpoint=other)
    pack(tiny, tmp_path, checkpoint=other, restart=True)
    assert read_manifest(tmp_path).source_revision == OTHER_REVISION
    expect_checkpoint_bytes(tiny, tmp_path, 1)


def test_a_foreign_file_in_the_way_is_refused(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    pack(tiny, tmp_path)
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(PackError, match="one that the manifest does not name"):
        pack(tiny, tmp_path)
    pack(tiny, tmp_path, restart=True)
    expect_checkpoint_bytes(tiny, tmp_path, 1)


def test_two_packers_in_one_folder_are_refused(tiny: TinyCheckpoint, tmp_path: Path) -> None:
    held = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, 2); print(flush=True); input()",
            str(tmp_path / ".pack.lock"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with held:
        assert held.stdout is not None
        held.stdout.readline()
        with pytest.raises(PackError, match="one packing run"):
            pack(tiny, tmp_path)
        held.communicate(b"\n")


def test_source_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    tiny = build_checkpoint(tmp_path / "checkpoint", scaled_config(vocab_size=500))
    request = make_request(tiny, tmp_path / "tables")
    shard = tmp_path / "checkpoint" / "model-00001-of-00002.safetensors"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 5000)
    with pytest.raises(DiskError, match=r"read must give \d+ bytes at byte \d+, got \d+"):
        pack_tables(request, NoProgress())
    assert not list((tmp_path / "tables").glob("*.engram"))


def test_peak_memory_stays_below_512_mib(tmp_path: Path) -> None:
    """The default chunks and workers on a 105 MB table, in a process of its own."""
    build_checkpoint(tmp_path / "checkpoint", scaled_config(vocab_size=16_000, head_dim=256, layer_ids=(1,)))
    code = """
import json, re, sys
from pathlib import Path
from engram.checkpoint import open_checkpoint
from engram.pack_table import NoProgress, PackRequest, pack_tables
checkpoint = open_checkpoint(Path(sys.argv[1]), revision="a" * 40)
report = pack_tables(PackRequest(checkpoint=checkpoint, directory=Path(sys.argv[2]), source_repo="x", tp=1,
    ranks=(0,), layer_ids=(1,), allow_buffered=True), NoProgress())
# Not getrusage: its maximum includes what the parent had when it started this process.
peak_kib = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(json.dumps([int(peak_kib) * 1024, report.packed_bytes]))
"""
    output = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "checkpoint"), str(tmp_path / "tables")],
        check=True, capture_output=True, text=True, timeout=120,
    ).stdout  # fmt: skip
    peak_bytes, packed_bytes = json.loads(output)
    assert packed_bytes > 100e6
    assert peak_bytes < 512 << 20
