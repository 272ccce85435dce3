"""Command lines, places and outputs that nobody meant: one error with a hint each, the right exit status,
never a traceback, and nothing done.
"""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = str(Path(sys.prefix) / "bin" / "sparkctl")


def sparkctl(tmp_path: Path, *argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *argv], env=own_environment(tmp_path, **environment), capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=60, cwd=tmp_path, check=False,
    )  # fmt: skip


def own_environment(tmp_path: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), **more}


@pytest.mark.parametrize(
    ("argv", "status", "says"),
    [
        (("up", "--nodes", "0"), 2, "--nodes"),
        (("plan", "--nodes", "-1"), 2, "--nodes"),
        (("plan", "--run-id", "../../x"), 2, "--run-id must be 1 to 64"),
        (("plan", "--run-id", ""), 2, "--run-id must be 1 to 64"),
        (("plan", "--nodes", "1", "--output", "no/such/plan.json"), 2, "must be writable"),
        (("plan", "--nodes", "1", "--output", "/dev/stdout"), 2, "must be a regular file"),
        (("plan", "--nodes", "1", "--output", "/"), 2, "must be a regular file"),
        (("status", "--run", "x" * 5000), 2, "there must be a run xxx"),
        (("down", "--run", ""), 2, "there must be a run ''"),
        (("down", "--run", ".."), 2, "there must be a run .."),
        (("down", "--all", "--run", "x"), 2, "--all must stand without --run"),
        (("status", "--all", "--run", "x"), 2, "--all must stand without --run"),
        (("topology", "init"), 2, "a question must have an answer"),
        (
            ("topology", "init", "--nodes", "a,b", "--no-probe", "--output", "/proc/x/y"),
            2,
            "--output must be",
        ),
        (("topology", "init", "--nodes", "a:99999", "--no-probe", "--output", "-"), 3, "65535 or less"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_what_nobody_can_mean_is_refused(
    tmp_path: Path, argv: tuple[str, ...], status: int, says: str
) -> None:
    done = sparkctl(tmp_path, *argv)
    assert done.returncode == status, done.stderr
    assert says in done.stderr and "Traceback" not in done.stderr and "unexpected" not in done.stderr
    assert "\n  -> " in done.stderr or "--help' for help" in done.stderr
    assert not (tmp_path / "state").exists()


def test_a_device_stays_what_it_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = sparkctl(
        tmp_path, "topology", "init", "--nodes", "a,b", "--no-probe", "--force", "--output", str(pipe)
    )
    assert done.returncode == 2 and "must be a regular file" in done.stderr
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_relative_state_directory_is_refused(tmp_path: Path) -> None:
    done = sparkctl(tmp_path, "status", XDG_STATE_HOME="state")
    assert done.returncode == 3 and "XDG_STATE_HOME must be an absolute path" in done.stderr


@pytest.mark.parametrize("argv", [("recipe", "show", "local", "--resolved"), ("recipe", "list")])
def test_a_reader_that_goes_is_no_error(tmp_path: Path, argv: tuple[str, ...]) -> None:
    """As in `sparkctl logs | head`: the reading end is closed before anything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [COMMAND, *argv], env=own_environment(tmp_path), stdout=writing, stderr=subprocess.PIPE, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_broken_pipe_elsewhere_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A node's pipe, say. It must not pass for a reader that went, and end without a word."""
    from launcher.cli import app as cli

    def broken(*_: object) -> None:
        raise BrokenPipeError(32, "Broken pipe", "a node")

    monkeypatch.setattr("launcher.find_recipe.find_recipe", broken)
    monkeypatch.setattr("sys.argv", ["sparkctl", "recipe", "show", "local"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 70 and "BrokenPipeError" in capsys.readouterr().err


def test_ctrl_c_while_modules_load_leaves_no_traceback(tmp_path: Path) -> None:
    """The first import of the command line is replaced by one that sends itself the signal."""
    (tmp_path / "typer.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time; time.sleep(30)\n"
    )
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-m", "launcher", "status"], capture_output=True, text=True, timeout=60, check=False,
        env=own_environment(tmp_path, PYTHONPATH=f"{tmp_path}:{root}"), cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
