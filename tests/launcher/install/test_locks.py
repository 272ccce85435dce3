"""The locks that come with sparkctl, and how one is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.install.find_lock import read_lock_file, shipped_locks
from launcher.node.answer import Refused
from launcher.node.install_wheels import by_hash, read_lock


def test_the_engine_for_sparks_is_locked_with_hashes() -> None:
    assert shipped_locks() == ("sglang-0.5.23-aarch64-cp312",)
    packages = read_lock(read_lock_file("sglang-0.5.23-aarch64-cp312"))
    assert len(packages) == 209
    assert packages["sglang"][0] == "0.5.23"
    assert all(len(hashes) == 1 for _, hashes in packages.values())


def test_a_lock_may_be_a_file(tmp_path: Path) -> None:
    path = tmp_path / "own.lock"
    path.write_text(
        "A_b.c==1 \\\n    --hash=sha256:" + "0" * 64 + " \\\n    --hash=sha256:" + "1" * 64 + "\n"
    )
    assert read_lock(read_lock_file(str(path))) == {"a-b-c": ("1", ["0" * 64, "1" * 64])}
    with pytest.raises(UsageError, match="must be a readable file or a name") as caught:
        read_lock_file(str(tmp_path / "none"))
    assert "sglang-0.5.23-aarch64-cp312" in caught.value.hint


def test_a_package_named_twice_is_refused() -> None:
    line = "a==1 --hash=sha256:" + "0" * 64 + "\n"
    with pytest.raises(Refused, match="must name a package once, got a again"):
        read_lock(line + line.replace("a==", "A=="))


def test_what_only_is_called_a_wheel_is_passed_over(tmp_path: Path) -> None:
    """pip leaves directories of such names in /tmp, and a link may lead to nothing."""
    (tmp_path / "spark_b-1-py3-none-any.whl").mkdir()
    (tmp_path / "spark_c-1-py3-none-any.whl").symlink_to("nothing")
    wheel = tmp_path / "spark_d-1-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    assert list(by_hash(tmp_path).values()) == [wheel]
