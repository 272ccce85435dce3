"""Sizes from a real directory, and one clear error for each kind of broken one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import ConfigError, PreflightRefused
from launcher.fit.model_shape import checkpoint_shape, derive_part_bytes, shipped_shape
from launcher.fit.read_checkpoint import INDEX_NAME, read_checkpoint
from launcher.fit.safetensors_header import read_header
from launcher.fit.weight_classes import Part, classify
from tests.launcher.fit_checkpoint import header_of, make_config, num_bytes, write_checkpoint, write_shard

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 10\n"
MODEL, DRAFT = "model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors"


def test_arithmetic_and_files_agree_to_the_byte(tmp_path: Path) -> None:
    shards = write_checkpoint(tmp_path)
    shape = checkpoint_shape(tmp_path)
    assert shape.part_bytes == derive_part_bytes(shape.config)
    assert shape.stored_bytes == sum(num_bytes(spec) for specs in shards.values() for spec in specs)


def test_one_file_without_an_index(tmp_path: Path) -> None:
    specs = write_checkpoint(tmp_path)[DRAFT]
    (tmp_path / INDEX_NAME).unlink()
    (tmp_path / DRAFT).rename(tmp_path / "model.safetensors")
    assert len(read_checkpoint(tmp_path)) == len(specs)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("layers.3.ffn.experts.11.w2.scale", Part.ROUTED),
        ("mtp.1.ffn.experts.0.w1.weight", Part.DRAFT_ROUTED),
        ("layers.0.attn.wo_a.weight", Part.WO_A),
        ("layers.0.attn.wo_a.scale", Part.ATTENTION),
        ("mtp.2.attn.wq_b.weight", Part.DRAFT_ATTENTION),
        ("layers.2.attn.indexer.wq_b.weight", Part.REPLICATED),
        ("layers.1.engram.embed.scale", Part.ENGRAM_ROWS),
        ("layers.1.engram.wkv.weight", Part.REPLICATED),
        ("mtp.2.markov_head.embed.weight", Part.DRAFT_REPLICATED),
        ("embed.weight", Part.VOCABULARY),
        ("vision.blocks.0.attn.qkv.weight", Part.VISION),
        ("something.new", Part.REPLICATED),
    ],
)
def test_parts(name: str, part: Part) -> None:
    assert classify(name) is part


def refused(directory: Path) -> str:
    with pytest.raises(PreflightRefused) as caught:
        checkpoint_shape(directory)
    assert caught.value.exit_code == 5
    assert caught.value.hint
    return caught.value.message


def test_missing_shards_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / DRAFT).unlink()
    assert f"got 1 of 4 missing: {DRAFT}" in refused(tmp_path)


def test_lfs_pointers_are_named(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / MODEL).write_bytes(LFS)
    assert "Git LFS pointer" in refused(tmp_path)
    (tmp_path / INDEX_NAME).write_bytes(LFS)
    with pytest.raises(ConfigError, match="Git LFS pointer"):
        checkpoint_shape(tmp_path)


def test_shard_that_was_cut_off(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    with (tmp_path / MODEL).open("r+b") as file:
        file.truncate((tmp_path / MODEL).stat().st_size - 1)
    assert "cut off" in refused(tmp_path)
    (tmp_path / MODEL).write_bytes(b"")
    assert "0 bytes" in refused(tmp_path)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(PreflightRefused, match="must be a directory, got none"):
        checkpoint_shape(tmp_path / "gone")


def test_a_loop_of_links(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / MODEL).unlink()
    (tmp_path / MODEL).symlink_to(MODEL)
    assert "missing" in refused(tmp_path)


def shift(header: dict[str, Any], name: str, begin: int, end: int) -> None:
    offsets = header[name]["data_offsets"]
    header[name]["data_offsets"] = [offsets[0] + begin, offsets[1] + end]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda header: shift(header, "norm.weight", -8, -8), "do not overlap"),
        (lambda header: shift(header, "norm.weight", 8, 8), "without gaps"),
        (lambda header: shift(header, "norm.weight", 0, 8), "bytes for norm.weight"),
        (lambda header: shift(header, "norm.weight", 1 << 50, 1 << 50), "gaps"),
        (lambda header: header["norm.weight"].update(dtype="F7"), "known dtype"),
        (lambda header: header["norm.weight"].update(dtype=["F32"]), "known dtype"),
        (lambda header: header["norm.weight"].update(dtype={}), "known dtype"),
        (lambda header: header["norm.weight"].update(shape=[1 << 64]), "a shape and two offsets"),
        (lambda header: header["norm.weight"].update(shape=[9**15] * 400), "a shape and two offsets"),
        (lambda header: header["norm.weight"].update(shape=[-256]), "a shape and two offsets"),
        (lambda header: header["norm.weight"].update(shape="256"), "a shape and two offsets"),
        (lambda header: header["norm.weight"].update(data_offsets=[9]), "a shape and two offsets"),
        (lambda header: header["norm.weight"].update(data_offsets=[True, 2]), "a shape and two offsets"),
        (lambda header: header.update({"norm.weight": 3}), "an object for norm.weight"),
        (lambda header: header.pop("embed.weight"), "without gaps"),
    ],
)
def test_wrong_headers(tmp_path: Path, change: Callable[[dict[str, Any]], object], expected: str) -> None:
    specs = write_checkpoint(tmp_path)[MODEL]
    header = header_of(specs)
    change(header)
    write_shard(tmp_path / MODEL, header, data_bytes=sum(map(num_bytes, specs)))
    assert expected in refused(tmp_path)


def test_tensor_beyond_the_file(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [100], "data_offsets": [0, 100]}}
    write_shard(tmp_path / "a.safetensors", header, data_bytes=50)
    with pytest.raises(PreflightRefused, match=r"inside the file's 50 bytes .* up to byte 100"):
        read_header(tmp_path / "a.safetensors")


def test_bytes_that_no_tensor_covers(tmp_path: Path) -> None:
    header = {"a": {"dtype": "U8", "shape": [10], "data_offsets": [0, 10]}}
    write_shard(tmp_path / "a.safetensors", header, data_bytes=11)
    with pytest.raises(PreflightRefused, match="10 bytes of data, as its header says, got 11"):
        read_header(tmp_path / "a.safetensors")


def test_index_of_another_download(tmp_path: Path) -> None:
    write_checkpoint(tmp_path)
    index = json.loads((tmp_path / INDEX_NAME).read_text())
    index["weight_map"]["layers.99.new.weight"] = MODEL
    (tmp_path / INDEX_NAME).write_text(json.dumps(index))
    assert "first layers.99.new.weight" in refused(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        "\x00\xff",
        "[" * 100_000,
        '{"weight_map": []}',
        '{"weight_map": {}}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../other/model.safetensors"}}',
    ],
)
def test_garbage_index(tmp_path: Path, text: str) -> None:
    write_checkpoint(tmp_path)
    (tmp_path / INDEX_NAME).write_text(text)
    with pytest.raises(ConfigError) as caught:
        checkpoint_shape(tmp_path)
    assert caught.value.exit_code == 3
    assert INDEX_NAME in caught.value.message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "qwen3"}, "model_type must be deepseek_v41, got 'qwen3'"),
        ({"text_config": None}, "text_config"),
        ({"text_config": {"hidden_size": 5120}}, "Field required"),
        ({"hidden_size": -1}, "hidden_size"),
        ({"hidden_size": "5120"}, "got '5120'"),
        ({"hidden_size": 5120.5}, "hidden_size"),
        ({"num_hidden_layers": 1 << 62}, "num_hidden_layers"),
        ({"compress_ratios": [0]}, "one entry a layer"),
        ({"kv_source_layer_ids": [77]}, "kv_source_layer_ids must name layers below 6"),
        ({"engram_num_embeddings": [1]}, "one entry for each"),
        ({"o_groups": 7}, "multiple of o_groups"),
    ],
)
def test_garbage_config(tmp_path: Path, change: dict[str, object], expected: str) -> None:
    write_checkpoint(tmp_path)
    config = make_config()
    for key, value in change.items():
        (config if key in ("model_type", "text_config") else config["text_config"])[key] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"config\.json") as caught:
        checkpoint_shape(tmp_path)
    assert expected in caught.value.message


@given(
    start=st.one_of(st.none(), st.integers(0, 1 << 64), st.integers(0, 400)),
    text=st.binary(max_size=300),
)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_header_or_one_error(
    tmp_path_factory: pytest.TempPathFactory, start: int | None, text: bytes
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "a.safetensors"
    length = b"" if start is None else min(start, (1 << 64) - 1).to_bytes(8, "little")
    path.write_bytes(length + text)
    try:
        read_header(path)
    except PreflightRefused as error:
        assert str(path) in error.message


def test_shipped_shape_is_valid() -> None:
    assert shipped_shape("v41-flash").config.kv_sources(2) == 3
