"""LocalRemote: the interface of SshRemote on this machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import NodeFailed
from launcher.local_remote import LocalRemote
from launcher.output_capture import OutputCapture
from launcher.remote import Remote

pytestmark = pytest.mark.timeout(180)

PATIENCE_S = 60.0  # for what comes at once on a free machine


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Remote:
    monkeypatch.setenv("HOME", str(tmp_path))
    return LocalRemote("here")


def wait_for(condition: Callable[[], bool], timeout_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def is_gone(pid: int) -> bool:
    """Ended, reaped or not: a killed grandchild may wait for process 1 to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def test_arguments_arrive_as_they_are(remote: Remote) -> None:
    words = ["it's", 'say "hi"', "$HOME", "a b", "", "*", "`id`", "\\", "new\nline", "; exit 9"]
    assert remote.run(["printf", "%s\\0", *words]).stdout.decode().split("\0")[:-1] == words


def test_starts_in_the_home_folder_and_an_own_session(remote: Remote, tmp_path: Path) -> None:
    folder, session, own = remote.run(["sh", "-c", "pwd; ps -o sid= -p $$; echo $$"]).stdout.decode().split()
    assert (Path(folder), session) == (tmp_path, own)


def test_ten_megabytes_each_way(remote: Remote) -> None:
    data = os.urandom(1 << 20) * 10
    result = remote.run(["tee", "/dev/stderr"], stdin=data)
    assert (result.exit_status, result.stdout == data, result.stderr == data) == (0, True, True)


def test_command_that_reads_no_stdin_still_ends(remote: Remote) -> None:
    assert remote.run(["true"], stdin=b"x" * (8 << 20)).exit_status == 0


@pytest.mark.parametrize(
    ("argv", "status"),
    [
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 137),
        (["no-such-command"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_exit_status(remote: Remote, argv: list[str], status: int) -> None:
    assert remote.run(argv).exit_status == status


def test_time_out_kills_the_whole_session(remote: Remote, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(NodeFailed, match=r"here: sh must end within 0\.3 s, got no end"):
        remote.run(["sh", "-c", f"sleep 96 & echo $! > {pid_file}; wait"], timeout_s=0.3)
    assert wait_for(lambda: is_gone(int(pid_file.read_text())))


def test_runaway_output_is_cut() -> None:
    """It talks for ever: that this ends is the check."""
    with pytest.raises(NodeFailed, match="output of yes must be at most 100000 bytes, got more"):
        LocalRemote("here", max_output_bytes=100_000).run(["yes"])


def test_stream_lines_time_out_and_end(remote: Remote, tmp_path: Path) -> None:
    script = "read x; echo $x; until [ -e go ]; do sleep 0.02; done; printf last; echo no >&2; exit 4"
    stream = remote.stream(["sh", "-c", script], stdin=b"in\n")
    assert stream.read_line(PATIENCE_S) == b"in"
    assert stream.read_line(0.05) is None
    (tmp_path / "go").touch()
    assert stream.read_line(PATIENCE_S) == b"last"
    for _ in range(2):
        with pytest.raises(EOFError, match="status 4: no"):
            stream.read_line(PATIENCE_S)
    stream.close()


def test_closing_a_stream_is_end_of_file_for_the_command(remote: Remote, tmp_path: Path) -> None:
    stream = remote.stream(["sh", "-c", "cat; echo ended > eof"], stdin=b"one\n")
    assert stream.read_line(PATIENCE_S) == b"one"
    stream.close()
    stream.close()
    assert wait_for(lambda: (tmp_path / "eof").exists())
    with pytest.raises(EOFError):
        stream.read_line(PATIENCE_S)


def test_a_closed_stream_does_not_block_a_talking_command(remote: Remote, tmp_path: Path) -> None:
    stream = remote.stream(["sh", "-c", "cat > /dev/null; seq 1 300000; echo ended > eof"])
    stream.close()
    assert wait_for(lambda: (tmp_path / "eof").exists())


def test_a_slow_reader_gets_every_line(remote: Remote) -> None:
    stream = remote.stream(["seq", "1", "20000"])
    time.sleep(0.3)
    lines = []
    with pytest.raises(EOFError, match="status 0"):
        while True:
            line = stream.read_line(PATIENCE_S)
            assert line is not None
            lines.append(int(line))
    assert lines == list(range(1, 20001))
    stream.close()


def test_a_line_without_end_is_refused(remote: Remote) -> None:
    stream = remote.stream(["sh", "-c", "yes | tr -d '\\n'"])
    with pytest.raises(NodeFailed, match="a line from the node must be at most"):
        while True:
            stream.read_line(5)
    stream.close()


def test_stream_of_a_missing_program_is_refused(remote: Remote) -> None:
    with pytest.raises(NodeFailed, match=r"no-such-command must start, got No such file") as caught:
        remote.stream(["no-such-command"])
    assert caught.value.hint


def test_capture_keeps_the_tail() -> None:
    chunks = iter([b"a" * 50, b"b" * 50, b"c" * 30, b""])
    capture = OutputCapture(lambda _: next(chunks), limit_bytes=60, keep_tail=True)
    assert capture.join(PATIENCE_S)
    assert capture.data() == b"b" * 30 + b"c" * 30
