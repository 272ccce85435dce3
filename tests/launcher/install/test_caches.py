"""Archives of compiled kernels: what may be in one, and what a disk says."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from launcher.errors import SparkctlError
from launcher.install.caches import CacheFacts, Packed, Unpacked, _refuse_full_disks, refuse_other_files
from launcher.local_remote import LocalRemote
from launcher.topology import Node
from launcher.weights.follow import Progress, follow


def nobody(seen: Progress) -> None:
    pass


def unpack(cache: Path) -> Unpacked:
    return follow(LocalRemote("spark-2"), "caches_unpack", Unpacked, nobody, cache=str(cache), archive_id="a")


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 3 if kind == tarfile.REGTYPE else 0
    return info


def archive(cache: Path, *members: tarfile.TarInfo) -> Path:
    path = cache / "kernels/a/kernels.tar"
    path.parent.mkdir(parents=True)
    with tarfile.open(path, "w") as file:
        for info in members:
            file.addfile(info, io.BytesIO(b"abc"[: info.size]))
    return path


@pytest.mark.parametrize(
    "bad",
    [
        member("../../.ssh/authorized_keys"),
        member("/etc/cron.d/x"),
        member("triton/../../../x"),
        member("other/x"),
        member("triton/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("triton/hard", tarfile.LNKTYPE, "/etc/passwd"),
        member("triton/pipe", tarfile.FIFOTYPE),
        member("triton/folder", tarfile.DIRTYPE),
    ],
    ids=lambda info: info.name,
)
def test_an_archive_holds_plain_files_of_a_cache_and_nothing_else(
    tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    archive(tmp_path, bad)
    with pytest.raises(SparkctlError, match="must hold plain files of triton, tilelang"):
        unpack(tmp_path)
    assert not [path for path in (tmp_path / "sglang").rglob("*") if path.is_file()]


def test_a_link_in_the_cache_leads_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/triton").symlink_to(outside)
    archive(tmp_path, member("triton/x"))
    with pytest.raises(SparkctlError, match="must hold plain files"):
        unpack(tmp_path)
    assert list(outside.iterdir()) == []


def test_an_archive_that_is_cut_off_leaves_no_half_file(tmp_path: Path) -> None:
    path = archive(tmp_path, member("triton/x"), member("triton/y"))
    data = path.read_bytes()
    path.write_bytes(data[:513])
    with pytest.raises(SparkctlError, match="must unpack, got"):
        unpack(tmp_path)
    assert not (tmp_path / "sglang/triton/x").exists()
    assert not list((tmp_path / "sglang").rglob("*partial"))


def node(name: str) -> Node:
    return Node.model_validate(
        {"name": name, "connection": "local", "fabric": {"address": "127.0.0.1", "interface": "lo"}}
    )


def test_a_full_disk_is_told_before_a_byte_moves() -> None:
    def facts(free_bytes: int) -> CacheFacts:
        return CacheFacts(depends_on={}, num_files=1, total_bytes=1 << 30, free_bytes=free_bytes)

    names = ("a", "b", "c")
    known = dict(zip(names, (facts(2 << 30), facts(2 << 30), facts(1 << 40)), strict=True))
    with pytest.raises(SparkctlError, match=r"copied: b needs 2147483648 bytes, got 2147483648 free\.$"):
        _refuse_full_disks(node("a"), (node("b"), node("c")), known)


def test_other_kernels_on_a_node_are_told() -> None:
    packed = Packed(archive_id="a", num_files=1, digest="1" * 64)
    refuse_other_files(packed, {"b": Unpacked(num_files=1, num_new=1, digest="1" * 64)})
    with pytest.raises(SparkctlError, match="got others on b"):
        refuse_other_files(packed, {"b": Unpacked(num_files=1, num_new=1, digest="2" * 64)})


def test_a_node_without_an_engine_is_told_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(SparkctlError, match="The engine must be on this node, got none") as caught:
        follow(
            LocalRemote("spark-2"), "caches_facts", CacheFacts, nobody,
            cache=str(tmp_path), engine=str(tmp_path / "engine"),
        )  # fmt: skip
    assert caught.value.hint.startswith("sparkctl install")
