"""A second install of the same engine on a node is refused while the first is at work."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from launcher.node.answer import Refused
from launcher.node.install_engine import install_engine


def test_a_second_install_is_refused_and_touches_nothing(tmp_path: Path) -> None:
    unfinished = tmp_path / "engines" / "venv-LOCK" / "bin"
    unfinished.mkdir(parents=True)
    with (tmp_path / "engines" / ".venv.lock").open("a") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another that is at work"):
            install_engine(
                engine=str(tmp_path / "engines/venv"),
                cache=str(tmp_path),
                lock_id="LOCK",
                lock=f"numpy==2.0.0 --hash=sha256:{'0' * 64}",
                python="no",
            )
    assert unfinished.is_dir()
