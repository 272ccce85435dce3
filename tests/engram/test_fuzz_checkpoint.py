"""Safetensors headers and checkpoint folders, damaged and hostile: tensors or one CheckpointError."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from engram.checkpoint import find_revision, open_checkpoint
from engram.errors import CheckpointError
from engram.safetensors_header import parse_safetensors_header, read_safetensors_header
from tests.engram.test_fuzz_manifest import JSON
from tests.engram.tiny_checkpoint import OTHER_REVISION, REVISION, build_checkpoint

GOOD = {
    "layers.1.engram.embed.weight": {"dtype": "F8_E4M3", "shape": [4, 32], "data_offsets": [0, 128]},
    "layers.1.engram.embed.scale": {"dtype": "F8_E8M0", "shape": [4, 1], "data_offsets": [128, 132]},
    "packed.fp4": {"dtype": "F4", "shape": [5], "data_offsets": [132, 140]},
    "__metadata__": {"format": "pt"},
}


def parse(document: object, *, file_bytes: int = 1000):
    return parse_safetensors_header(
        json.dumps(document).encode(), data_offset_bytes=100, file_bytes=file_bytes, path=Path("shard")
    )


def test_offsets_count_from_the_file_start() -> None:
    entries = parse(GOOD)
    assert entries["layers.1.engram.embed.scale"].offset_bytes == 228
    assert entries["packed.fp4"].num_bytes == 8


def test_same_ranges_as_the_safetensors_package(tmp_path: Path) -> None:
    tensors = {name: np.arange(size, dtype=np.int32) for name, size in (("a", 3), ("b", 0), ("c", 70))}
    save_file(tensors, tmp_path / "x.safetensors")
    raw = (tmp_path / "x.safetensors").read_bytes()
    for name, entry in read_safetensors_header(tmp_path / "x.safetensors").items():
        data = raw[entry.offset_bytes : entry.offset_bytes + entry.num_bytes]
        assert data == tensors[name].tobytes()


@given(st.binary(max_size=200))
def test_any_bytes_as_a_file(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(raw)
    try:
        entries = read_safetensors_header(path)
    except CheckpointError as error:
        assert error.hint
    else:
        assert entries == {}


@given(JSON)
def test_any_json_as_a_header(document: object) -> None:
    try:
        parse(document)
    except CheckpointError as error:
        assert "must be" in str(error)


@given(st.sampled_from(["dtype", "shape", "data_offsets"]), JSON)
def test_any_value_in_any_field(field: str, value: object) -> None:
    try:
        parse(GOOD | {"layers.1.engram.embed.weight": GOOD["layers.1.engram.embed.weight"] | {field: value}})
    except CheckpointError as error:
        assert "must be" in str(error)


def _with(name: str, **changes: object) -> dict[str, object]:
    return GOOD | {name: GOOD[name] | changes}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            _with("layers.1.engram.embed.scale", data_offsets=[127, 131]),
            "must be bytes of its own .*overlap",
        ),
        (_with("layers.1.engram.embed.scale", data_offsets=[128, 133]), "must be 4 bytes for F8_E8M0"),
        (_with("layers.1.engram.embed.scale", data_offsets=[132, 128]), "must be ascending"),
        (_with("packed.fp4", data_offsets=[132, 901]), "must be at least 1001 bytes long, got 1000 bytes"),
        (_with("packed.fp4", shape=[-1]), "must be dtype, shape and data_offsets"),
        ([1], "must be an object, got list"),
    ],
)
def test_reason_is_named(document: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        parse(document)


def test_lfs_pointer_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model-00001-of-00001.safetensors"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 101000000000\n")
    with pytest.raises(CheckpointError, match="got a Git LFS pointer") as caught:
        read_safetensors_header(path)
    assert "git lfs pull" in caught.value.hint


@pytest.mark.parametrize("raw", [b"", b"\x10\0\0", (2**40).to_bytes(8, "little") + b"{}", bytes(8) + b"{}"])
def test_torn_headers_are_named(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match="header must be inside the file"):
        read_safetensors_header(path)


def test_cut_shard_is_found_at_open(tmp_path: Path) -> None:
    build_checkpoint(tmp_path)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    with shard.open("r+b") as file:
        file.truncate(shard.stat().st_size - 1)
    with pytest.raises(CheckpointError, match=r"at least \d+ bytes long.*model-00002"):
        open_checkpoint(tmp_path, revision=REVISION)


def test_missing_shard_tensor_and_folder_are_named(tmp_path: Path) -> None:
    build_checkpoint(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"shard model-00002-of-00002.safetensors.*no such file"):
        open_checkpoint(tmp_path, revision=REVISION)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"'layers.2.engram.embed.weight' must be in the checkpoint"):
        open_checkpoint(tmp_path, revision=REVISION)
    with pytest.raises(CheckpointError, match="got no such folder"):
        open_checkpoint(tmp_path / "nowhere", revision=REVISION)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"weight_map": []}', '{"weight_map": {"a": "../../etc/passwd"}}']
)
def test_broken_index_is_named(tmp_path: Path, text: str) -> None:
    build_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match="the index must"):
        open_checkpoint(tmp_path, revision=REVISION)


def test_another_dtype_is_refused(tmp_path: Path) -> None:
    build_checkpoint(tmp_path)
    shard = tmp_path / "model-00001-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes().replace(b'"F8_E8M0"', b'"U8"     '))
    with pytest.raises(CheckpointError, match=r"embed.scale' must be F8_E8M0 .*got U8"):
        open_checkpoint(tmp_path, revision=REVISION)


def test_revision_is_found_or_asked_for(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    build_checkpoint(plain)
    with pytest.raises(CheckpointError, match="revision must be known"):
        open_checkpoint(plain)
    with pytest.raises(CheckpointError, match="--revision must be 1 to 64"):
        open_checkpoint(plain, revision="a/b")
    snapshot = tmp_path / "snapshots" / REVISION
    build_checkpoint(snapshot)
    assert open_checkpoint(snapshot).revision == REVISION
    with pytest.raises(CheckpointError, match=f"must be {REVISION}.*got {OTHER_REVISION}"):
        open_checkpoint(snapshot, revision=OTHER_REVISION)
    record = plain / ".cache" / "huggingface" / "download" / "config.json.metadata"
    record.parent.mkdir(parents=True)
    record.write_text(f"{OTHER_REVISION}\nabc\n1.0\n")
    assert find_revision(plain) == OTHER_REVISION


def test_a_tiny_model_is_its_own_record(tmp_path: Path) -> None:
    build_checkpoint(tmp_path)
    (tmp_path / "tiny_model.json").write_text('{"kind": "v41", "seed": 0}')
    first = open_checkpoint(tmp_path).revision
    (tmp_path / "tiny_model.json").write_text('{"kind": "v41", "seed": 1}')
    assert first.startswith("tiny-") and open_checkpoint(tmp_path).revision != first
