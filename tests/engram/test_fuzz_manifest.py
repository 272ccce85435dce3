"""The manifest parser against damaged and hostile text: a value or one TableFormatError, nothing else."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.errors import TableFormatError
from engram.manifest import (
    Manifest,
    ManifestFile,
    new_manifest,
    parse_manifest,
    read_manifest,
    write_manifest,
)

ENTRY = ManifestFile(
    layer_id=1,
    rank=0,
    tp=3,
    table_id="5a" * 32,
    file_bytes=4096 * 300,
    block_checksums=bytes(range(32)),
)
MANIFEST = new_manifest(source_repo="owner/model", source_revision="c" * 40).with_file(ENTRY)
TEXT = MANIFEST.model_dump_json().encode()

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)


def parse_or_refuse(text: bytes) -> Manifest | None:
    try:
        return parse_manifest(text, where="test")
    except TableFormatError as error:
        assert str(error).startswith("manifest.json must be")
        assert "(test)" in str(error)
        assert error.hint
        assert error.exit_code == 7
        return None


def test_round_trip(tmp_path) -> None:
    write_manifest(tmp_path, MANIFEST)
    assert read_manifest(tmp_path) == MANIFEST
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


@given(st.binary(max_size=300))
def test_any_bytes(text: bytes) -> None:
    assert parse_or_refuse(text) is None


@given(JSON)
def test_any_json(document: object) -> None:
    assert parse_or_refuse(json.dumps(document).encode()) is None


@given(st.integers(0, len(TEXT)))
def test_cut_anywhere(cut: int) -> None:
    assert (parse_or_refuse(TEXT[:cut]) is None) == (cut < len(TEXT))


@given(st.integers(0, len(TEXT) - 1), st.integers(0, 7))
def test_flipped_bit_never_yields_the_same_entry(at: int, bit: int) -> None:
    """A flip inside a checksum still parses: then the block it names does not check any more."""
    flipped = bytearray(TEXT)
    flipped[at] ^= 1 << bit
    parsed = parse_or_refuse(bytes(flipped))
    assert parsed is None or parsed != MANIFEST


@given(st.sampled_from([*ManifestFile.model_fields]), JSON)
def test_any_value_in_any_field_of_a_file(field: str, value: object) -> None:
    document = json.loads(TEXT)
    document["files"][0][field] = value
    parse_or_refuse(json.dumps(document).encode())


@given(st.sampled_from([*Manifest.model_fields]), JSON)
def test_any_value_in_any_field(field: str, value: object) -> None:
    document = json.loads(TEXT)
    document[field] = value
    parse_or_refuse(json.dumps(document).encode())


@pytest.mark.parametrize("text", [b"[" * 100_000, b'{"files":' * 50_000, b"9" * 100_000, b"\xff\xfe", b""])
def test_hostile_text(text: bytes) -> None:
    assert parse_or_refuse(text) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rank": 3}, "rank must be below tp 3, got 3"),
        ({"file_bytes": 4096 * 600}, "must hold 3 of 16 bytes, got 32 bytes"),
        ({"file_bytes": 5000}, "file_bytes"),
        ({"block_checksums": "A"}, "not base64"),
        ({"table_id": "5A" * 32}, "table_id"),
        ({"extra": 1}, "extra"),
    ],
)
def test_reason_is_named(changes: dict[str, object], message: str) -> None:
    document = json.loads(TEXT)
    document["files"][0] |= changes
    with pytest.raises(TableFormatError, match=message):
        parse_manifest(json.dumps(document).encode(), where="test")


def test_two_entries_of_one_name_and_another_version_are_refused() -> None:
    document = json.loads(TEXT)
    document["files"] *= 2
    with pytest.raises(TableFormatError, match="listed once"):
        parse_manifest(json.dumps(document).encode(), where="test")
    document = json.loads(TEXT) | {"layout_version": 2}
    with pytest.raises(TableFormatError, match="layout_version must be 1, got 2"):
        parse_manifest(json.dumps(document).encode(), where="test")


def test_missing_manifest_says_what_to_do(tmp_path) -> None:
    with pytest.raises(TableFormatError, match="must be readable") as caught:
        read_manifest(tmp_path)
    assert "sparkctl engram pack" in caught.value.hint
