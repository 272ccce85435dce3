"""What must never be taken for a checkpoint, and a node that answers wrongly: without SSH."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import SparkctlError
from launcher.local_remote import LocalRemote
from launcher.node.answer import Refused
from launcher.node.weights_adopt import _copy
from launcher.node.weights_manifest import MANIFEST_NAME
from launcher.node.weights_report import Report
from launcher.remote import RemoteResult, RemoteStream
from launcher.topology import Node
from launcher.weights.fetch import adopt
from launcher.weights.file_list import Fetched, Stock, Verified
from launcher.weights.follow import Progress, follow
from launcher.weights.space import refuse_full_disks
from launcher.weights.verify import verify
from tests.launcher.weights.checkpoints import INDEX, SHARDS, write_checkpoint, write_shard

FIRST, SECOND = sorted(SHARDS)[:2]


def nobody(seen: Progress) -> None:
    pass


def local_node(models: Path) -> Node:
    fabric = {"address": "127.0.0.1", "interface": "lo"}
    return Node.model_validate(
        {"name": "spark-1", "connection": "local", "fabric": fabric, "paths": {"models": str(models)}}
    )


def take_over(models: Path, source: str = "m", target: str = "m") -> Fetched:
    return adopt(local_node(models), target, source, LocalRemote("spark-1"), nobody)


def overlap(shard: Path) -> None:
    rewrite_header(shard, lambda header: header["embed.weight"].update(data_offsets=[5, 300_005]))


def out_of_range(shard: Path) -> None:
    rewrite_header(
        shard,
        lambda header: header["layers.0.attn.wq_a.weight"].update(
            data_offsets=[300_000, 2_000_000], shape=[1_700_000]
        ),
    )


def rewrite_header(shard: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    data = shard.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    shard.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def pointer(shard: Path) -> None:
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")


def circle(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to(shard.with_name("b"))
    shard.with_name("b").symlink_to(shard)


def dangling(shard: Path) -> None:
    shard.unlink()
    shard.symlink_to("nowhere")


def folder_link(shard: Path) -> None:
    shard.with_name("up").symlink_to("..")


def fifo(shard: Path) -> None:
    os.mkfifo(shard.with_name("pipe"))


def cut_off(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size - 1)


def no_config(shard: Path) -> None:
    shard.with_name("config.json").unlink()


def garbage_config(shard: Path) -> None:
    shard.with_name("config.json").write_text("<html>")


def no_index(shard: Path) -> None:
    shard.with_name(INDEX).unlink()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (overlap, "must have tensors that do not overlap|must have tensors without gaps"),
        (out_of_range, "must have tensors inside the file's"),
        (pointer, "must hold its weights, got a Git LFS pointer"),
        (circle, "got links that lead in a circle"),
        (dangling, "got a link to nothing: nowhere"),
        (folder_link, "must hold files and directories, got a link to a directory"),
        (fifo, "must hold files and directories, got something else"),
        (cut_off, "must have tensors inside the file's|bytes of data"),
        (Path.unlink, "must name shards that are there, got 1 of 4 missing: model-00001"),
        (no_config, "must have config.json, got none"),
        (garbage_config, "config.json must be JSON, got: "),
        (no_index, "must have model.safetensors.index.json, got none"),
    ],
)
def test_no_checkpoint_is_taken_over(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    directory = write_checkpoint(tmp_path / "m")
    spoil(directory / FIRST)
    with pytest.raises(SparkctlError, match=message) as caught:
        take_over(tmp_path)
    assert (caught.value.node, caught.value.exit_code) == ("spark-1", 5)
    assert caught.value.hint
    assert not (directory / MANIFEST_NAME).exists()


def test_a_snapshot_of_links_becomes_hard_links(tmp_path: Path) -> None:
    """As huggingface_hub lays it out: links to blobs. The bytes are on disk once."""
    real = write_checkpoint(tmp_path / "blobs")
    snapshot = tmp_path / "snapshot"
    snapshot.mkdir()
    for path in real.iterdir():
        if path.is_file():
            (snapshot / path.name).symlink_to(path)
    done = take_over(tmp_path, str(snapshot))
    assert done.num_files == len(SHARDS) + 2
    assert (tmp_path / "m" / FIRST).stat().st_ino == (real / FIRST).stat().st_ino
    assert not (tmp_path / "m" / FIRST).is_symlink()
    assert json.loads((tmp_path / "m" / MANIFEST_NAME).read_bytes())["complete"] is True


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_file_that_changes_under_the_copy_gets_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_cut: bool
) -> None:
    """Half of an old and half of a new file would have the right size and a hash of its own."""
    origin, target = write_checkpoint(tmp_path / "source"), tmp_path / "m"
    target.mkdir()
    path = origin / FIRST
    scanned, send = path.stat(), os.sendfile

    def change(*arguments: int | None) -> int:
        if path.stat().st_mtime_ns == scanned.st_mtime_ns:
            with path.open("r+b") as file:
                file.truncate(scanned.st_size - 1 if is_cut else None)
            os.utime(path, ns=(0, scanned.st_mtime_ns + 1))
        return send(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "sendfile", change)
    with pytest.raises(Refused, match="must stay as it is while it is copied"):
        _copy(path, target, FIRST, scanned, Report("copy", scanned.st_size))
    assert list(target.iterdir()) == []


def test_files_of_another_checkpoint_are_in_the_way(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m")
    write_shard(tmp_path / "m" / "model-old.safetensors", {"x": 10})
    write_checkpoint(tmp_path / "new", seed=1)
    with pytest.raises(SparkctlError, match=r"must hold this checkpoint alone, got 1 file.* model-old"):
        take_over(tmp_path, "new")


def test_a_damaged_manifest_is_refused(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "m")
    (directory / MANIFEST_NAME).write_text('{"schema_version": 1, "files": {"../x": {}}}')
    with pytest.raises(SparkctlError, match="must be a manifest of schema version 1") as caught:
        take_over(tmp_path)
    assert caught.value.hint.startswith("remove it")


@pytest.mark.parametrize(
    ("manifest", "state", "said"),
    [
        ("no directory", "absent", "got no directory"),
        (None, "unknown", "must have a manifest with hashes, got none"),
        (b"garbage", "unknown", "must be a manifest of schema version 1"),
        (
            b'{"schema_version": 1, "files": {"../x": {}}}',
            "unknown",
            "must be a manifest of schema version 1",
        ),
    ],
)
def test_only_what_is_not_there_is_absent(
    tmp_path: Path, manifest: bytes | str | None, state: str, said: str
) -> None:
    if manifest != "no directory":
        directory = write_checkpoint(tmp_path / "m")
        if isinstance(manifest, bytes):
            (directory / MANIFEST_NAME).write_bytes(manifest)
    node = local_node(tmp_path)
    (seen,) = verify([node], {"spark-1": LocalRemote("spark-1")}, "m", nobody, quick=True)
    assert (seen.state, said in seen.reasons[0]) == (state, True), seen
    assert seen.hint


def test_taking_over_again_hashes_only_what_changed(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "m")
    take_over(tmp_path)
    write_shard(directory / SECOND, SHARDS[SECOND], seed=1)
    seen: list[Progress] = []
    adopt(local_node(tmp_path), "m", "m", LocalRemote("spark-1"), seen.append)
    assert seen[-1].phase == "hash"
    assert seen[-1].done_bytes == seen[-1].total_bytes == (directory / SECOND).stat().st_size


class Answers:
    """A node that says these lines and then nothing, or ends. Over SSH it would look the same."""

    node, is_local = "spark-2", False

    def __init__(self, *lines: bytes, ends: bool = True) -> None:
        self._lines, self._ends = list(lines), ends

    def run(self, argv: object, *, stdin: bytes = b"", timeout_s: float = 30.0) -> RemoteResult:
        raise AssertionError("a long request is a stream")

    def stream(self, argv: object, *, stdin: bytes = b"") -> RemoteStream:
        return self

    def read_line(self, timeout_s: float) -> bytes | None:
        if self._lines:
            return self._lines.pop(0)
        if self._ends:
            raise EOFError("the command ended with status 1: Killed")
        return None

    def close(self) -> None:
        pass


PROGRESS = b'{"progress":{"phase":"receive","done_bytes":1,"total_bytes":2}}'


@pytest.mark.parametrize(
    ("remote", "message"),
    [
        (Answers(PROGRESS, ends=False), "must report twice a second, got nothing for 0.1 s"),
        (Answers(PROGRESS), "must end with a result, got an end without one: .*Killed"),
        (Answers(b"Welcome to Ubuntu!"), "answered what is no JSON"),
        (Answers(b"[1]"), "answered list, not an object"),
        (Answers(b'{"hello":1}'), "must answer with progress or a result"),
        (Answers(b'{"progress":{"phase":"x","done_bytes":"much"}}'), "must answer with progress"),
        (Answers(b'{"done":{"directory":"/m"}}'), "must answer with a Fetched, got field required"),
    ],
)
def test_a_node_that_answers_late_half_or_garbage_is_named(remote: Answers, message: str) -> None:
    with pytest.raises(SparkctlError, match=message) as caught:
        follow(remote, "weights_fetch", Fetched, nobody, silence_s=0.1)
    assert (caught.value.node, caught.value.exit_code) == ("spark-2", 4)
    assert caught.value.hint or "not an object" in caught.value.message


def stock(needed_bytes: int, free_bytes: int) -> Stock:
    return Stock(directory="/m", num_present=0, num_linked=0, num_missing=1, missing_bytes=needed_bytes,
                 needed_bytes=needed_bytes, free_bytes=free_bytes)  # fmt: skip


def test_every_full_disk_is_told_with_both_numbers() -> None:
    stocks = {"a": stock(10, 1 << 40), "b": stock(1 << 40, 7), "c": stock(3 << 30, 5)}
    with pytest.raises(SparkctlError) as caught:
        refuse_full_disks(stocks)
    assert "b needs 1099511627776 bytes (1024.0 GiB), got 7 free" in caught.value.message
    assert "c needs 3221225472 bytes (3.0 GiB), got 5 free" in caught.value.message
    assert "a needs" not in caught.value.message


def test_lists_that_disagree_make_a_node_different() -> None:
    from launcher.run_on_all import Result
    from launcher.weights.verify import judge

    def verified(sha256: str) -> Result[Verified]:
        return Result(value=Verified(complete=True, left_out=(), whole={}, files={"x": sha256}, wrong=(),
                                     missing=(), partial_bytes=0, have_bytes=1, total_bytes=1))  # fmt: skip

    states = judge({"a": verified("0" * 64), "b": verified("1" * 64), "c": verified("0" * 64)})
    assert [item.state for item in states] == ["complete", "different", "complete"]
    assert "x: sha256 0000000000000000... on the other nodes" in states[1].reasons[0]
