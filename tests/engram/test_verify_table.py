"""What verification must find: any flipped bit, any cut, any file in another's place."""

import shutil
from pathlib import Path

import pytest

from engram.checkpoint import Checkpoint, open_checkpoint
from engram.errors import EngramError, TableFormatError, TableMismatchError
from engram.manifest import (
    BLOCK_BYTES,
    block_checksum,
    new_manifest,
    read_manifest,
    write_manifest,
)
from engram.verify_table import FileReport, VerifyRequest, verify_tables
from tests.engram.test_pack_table import pack
from tests.engram.tiny_checkpoint import (
    OTHER_REVISION,
    REVISION,
    TinyCheckpoint,
    build_checkpoint,
    scaled_config,
)

FILE = "layer-01.rank-0of2.engram"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyCheckpoint:
    return build_checkpoint(tmp_path_factory.mktemp("checkpoint"), scaled_config(vocab_size=6000))


@pytest.fixture(scope="module")
def packed(tiny: TinyCheckpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("packed")
    pack(tiny, directory, tp=2, ranks=(0, 1))
    return directory


@pytest.fixture
def tables(packed: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(packed, tmp_path / "tables")
    return tmp_path / "tables"


@pytest.fixture(scope="module")
def checkpoint(tiny: TinyCheckpoint) -> Checkpoint:
    return open_checkpoint(tiny.directory, revision=REVISION)


def verify(directory: Path, **changes: object) -> list[FileReport]:
    return verify_tables(VerifyRequest(directory=directory, allow_buffered=True, **changes))


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def test_sound_tables_pass_in_full(packed: Path, checkpoint: Checkpoint) -> None:
    reports = verify(packed, full=True, checkpoint=checkpoint)
    assert len(reports) == 4
    assert all(report.checked_blocks == report.num_blocks > 2 for report in reports)
    assert sum(report.compared_rows for report in reports) == sum(t.num_rows for t in checkpoint.tables)


def test_sample_reads_so_many_blocks(packed: Path, checkpoint: Checkpoint) -> None:
    reports = verify(packed, sample=2, checkpoint=checkpoint, seed=1)
    assert [report.checked_blocks for report in reports] == [2, 2, 2, 2]
    assert all(report.compared_rows > 0 for report in reports)
    assert all(report.checked_blocks == 0 for report in verify(packed, sample=0))


@pytest.mark.parametrize("place", ["header", "first row", "middle", "page tail", "last page"])
def test_flipped_bit(tables: Path, place: str) -> None:
    size = (tables / FILE).stat().st_size
    at = {"header": 300, "first row": 4096, "middle": size // 2, "page tail": 8191, "last page": size - 1}
    flip(tables / FILE, at[place])
    with pytest.raises(TableFormatError, match="must"):
        verify(tables, full=True)


def test_flipped_bit_in_the_header_is_found_without_reading_rows(tables: Path) -> None:
    flip(tables / FILE, 100)
    with pytest.raises(TableFormatError, match="header checksum"):
        verify(tables)


def test_every_block_is_covered_by_a_checksum(tables: Path) -> None:
    entry = read_manifest(tables).find(FILE)
    assert entry is not None
    for block in range(entry.num_blocks):
        offset, _ = entry.block_range(block)
        flip(tables / FILE, offset + 17)
        with pytest.raises(TableFormatError, match=f"the MiB at byte {offset} must have"):
            verify(tables, full=True)
        flip(tables / FILE, offset + 17)
    verify(tables, full=True)


@pytest.mark.parametrize("cut", [1, 4096, 3 * BLOCK_BYTES // 2])
def test_truncated_file(tables: Path, cut: int) -> None:
    path = tables / FILE
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - cut)
    with pytest.raises(TableFormatError, match="on the disk"):
        verify(tables)


def test_grown_file(tables: Path) -> None:
    with (tables / FILE).open("ab") as file:
        file.write(bytes(4096))
    with pytest.raises(TableFormatError, match="on the disk"):
        verify(tables)


def test_swapped_ranks(tables: Path) -> None:
    first, second = tables / FILE, tables / "layer-01.rank-1of2.engram"
    first.rename(tables / "x")
    second.rename(first)
    (tables / "x").rename(second)
    with pytest.raises(TableMismatchError, match="rank 0 of 2, as its name says, got layer 1, rank 1 of 2"):
        verify(tables)


def test_swapped_layers(tables: Path) -> None:
    shutil.copyfile(tables / "layer-02.rank-0of2.engram", tables / FILE)
    with pytest.raises(TableMismatchError, match=r"must hold layer 1, .* got layer 2"):
        verify(tables)


def test_stale_tp_is_named(packed: Path) -> None:
    with pytest.raises(TableMismatchError, match=r"rank-0of3.engram must be in the manifest") as caught:
        verify(packed, tp=3, rank=0)
    assert "--tp 3 --rank 0" in caught.value.hint


def test_every_layer_asked_for_must_be_there(packed: Path) -> None:
    with pytest.raises(TableMismatchError, match=r"layers \[99\] must be in the manifest, got \[1, 2\]"):
        verify(packed, layer_ids=(1, 99))


def test_stale_tp_under_the_new_name(tables: Path, tiny: TinyCheckpoint, tmp_path: Path) -> None:
    """Files of TP 2 renamed as those of TP 1, manifest and all."""
    pack(tiny, tmp_path / "one")
    shutil.copyfile(tables / FILE, tmp_path / "one" / "layer-01.rank-0of1.engram")
    with pytest.raises(TableMismatchError, match="rank 0 of 1, as its name says, got layer 1, rank 0 of 2"):
        verify(tmp_path / "one")


def test_wrong_revision(tables: Path, tiny: TinyCheckpoint, tmp_path: Path) -> None:
    with pytest.raises(TableMismatchError, match=f"revision {OTHER_REVISION}, got {REVISION}"):
        verify(tables, revision=OTHER_REVISION)
    other = open_checkpoint(tiny.directory, revision=OTHER_REVISION)
    with pytest.raises(TableMismatchError, match=f"revision {OTHER_REVISION}, got {REVISION}"):
        verify(tables, checkpoint=other)
    pack(tiny, tmp_path / "other", checkpoint=other, tp=2)
    shutil.copyfile(tmp_path / "other" / FILE, tables / FILE)
    with pytest.raises(TableMismatchError, match=f"{REVISION}, as the manifest says, got {OTHER_REVISION}"):
        verify(tables)


def test_file_of_another_table_with_the_same_name(tables: Path, tmp_path: Path) -> None:
    other = build_checkpoint(tmp_path / "other", scaled_config(vocab_size=5900))
    pack(other, tmp_path / "tables2", tp=2)
    shutil.copyfile(tmp_path / "tables2" / FILE, tables / FILE)
    with pytest.raises(TableMismatchError, match="table_id must be"):
        verify(tables)


def test_missing_file(tables: Path) -> None:
    (tables / FILE).unlink()
    with pytest.raises(EngramError, match=f"ENOENT.*{FILE}"):
        verify(tables)


def test_rank_beyond_the_split(packed: Path) -> None:
    with pytest.raises(TableMismatchError, match="--rank must be below --tp 2, got 2"):
        verify(packed, tp=2, rank=2)


def _reseal(tables: Path) -> None:
    """A manifest that agrees with the damaged file: only the checkpoint can tell."""
    manifest = read_manifest(tables)
    entry = manifest.find(FILE)
    assert entry is not None
    raw = (tables / FILE).read_bytes()
    checksums = b"".join(
        block_checksum(raw[at : at + BLOCK_BYTES]) for at in range(4096, len(raw), BLOCK_BYTES)
    )
    write_manifest(tables, manifest.with_file(entry.model_copy(update={"block_checksums": checksums})))


@pytest.mark.parametrize(("row", "byte", "plane"), [(0, 0, "weight"), (77, 31, "weight"), (778, 32, "scale")])
def test_wrong_row_under_right_checksums(
    tables: Path, checkpoint: Checkpoint, row: int, byte: int, plane: str
) -> None:
    page, slot = divmod(row, 124)
    flip(tables / FILE, 4096 + page * 4096 + slot * 33 + byte)
    _reseal(tables)
    verify(tables, full=True)
    with pytest.raises(TableMismatchError, match=rf"the {plane} of row {row} must be the checkpoint's"):
        verify(tables, full=True, checkpoint=checkpoint)


def test_nonzero_tail_under_right_checksums(tables: Path, checkpoint: Checkpoint) -> None:
    flip(tables / FILE, 8191)
    _reseal(tables)
    with pytest.raises(TableMismatchError, match="unused bytes of a page must be zero"):
        verify(tables, full=True, checkpoint=checkpoint)


def test_expected_files_may_be_narrowed(packed: Path) -> None:
    names = [report.name for report in verify(packed, rank=1, layer_ids=(2,))]
    assert names == ["layer-02.rank-1of2.engram"]
    with pytest.raises(TableMismatchError, match=r"layer-03.rank-1of2.engram must be in the manifest"):
        verify(packed, rank=1, layer_ids=(3,))


def test_empty_manifest_is_refused(tmp_path: Path) -> None:
    write_manifest(tmp_path, new_manifest(source_repo="x", source_revision="y"))
    with pytest.raises(TableMismatchError, match="--tp must be given"):
        verify(tmp_path)
