"""The whole command against a real server that is no SGLang: warm-up, resume, refusals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher.bench.replay_server import MODEL, ReplayServer


@pytest.fixture
def server() -> Iterator[ReplayServer]:
    with ReplayServer() as running:
        yield running


def command(server: ReplayServer, *words: str) -> list[str]:
    return [sys.executable, "-m", "launcher", "bench", "--url", server.url, "--model", MODEL, *words]


def run(server: ReplayServer, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(server, *words), capture_output=True, text=True, timeout=60)


SMALL = ("--kinds", "prose", "-c", "1,2", "--rounds", "1")


def records(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "requests.jsonl").read_text().splitlines()]


def test_the_first_round_is_recorded_and_discarded(server: ReplayServer, tmp_path: Path) -> None:
    done = run(server, *SMALL, "--json", "-o", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    cells = told["summary"]["cells"]
    assert [(cell["concurrency"], cell["requests"], cell["discarded"]) for cell in cells] == [
        (1, 1, 1),
        (2, 2, 2),
    ]
    found = records(tmp_path / "run")
    assert len(found) == 6 and len({item["prompt_sha256"] for item in found}) == 6
    assert {item["completion_tokens"] for item in found} == {9}
    assert "left" in done.stderr and "no /metrics" in done.stderr
    again = run(server, *SMALL, "-o", str(tmp_path / "run"))
    assert again.returncode == 2 and "--resume" in again.stderr


@pytest.mark.parametrize("behaviour", ["empty", "garbled", "repeated", "error", "no usage"])
def test_what_is_no_result_ends_with_status_8_and_keeps_its_records(
    server: ReplayServer, tmp_path: Path, behaviour: str
) -> None:
    server.behaviour = behaviour
    done = run(server, "--kinds", "prose", "-c", "1", "--rounds", "1", "-o", str(tmp_path / "run"))
    assert done.returncode == 8, done.stderr
    assert len(records(tmp_path / "run")) == 1 and not (tmp_path / "run" / "manifest.json").exists()


@pytest.mark.parametrize(("behaviour", "status"), [("cached", 8), ("cold", 0)])
def test_a_cold_prompt_that_was_cached_is_no_result(
    server: ReplayServer, tmp_path: Path, behaviour: str, status: int
) -> None:
    """Also where the server has no /metrics and tells cached tokens in the usage only."""
    server.behaviour = behaviour
    words = ("-s", "prefill", "--prefill-tokens", "1000,1M", "--rounds", "1", "-o", str(tmp_path / "r"))
    done = run(server, *words)
    assert done.returncode == status, done.stderr
    assert "1048576 tokens left out" in done.stderr
    assert ("must be cold, 100% of its prompt came from the prefix cache" in done.stderr) == (status == 8)
    assert (tmp_path / "r/manifest.json").exists() == (status == 0)


def test_a_feature_that_nobody_can_see_is_refused(server: ReplayServer, tmp_path: Path) -> None:
    done = run(server, *SMALL, "--expect", "speculation", "-o", str(tmp_path / "run"))
    assert done.returncode == 5 and "speculation" in done.stderr and not server.seen


def test_a_resumed_run_keeps_the_notes_of_what_was_measured_before(
    server: ReplayServer, tmp_path: Path
) -> None:
    server.behaviour = "garbled"
    folder = tmp_path / "run"
    words = ("--kinds", "prose", "-c", "1", "--rounds", "1", "--allow", "garbled", "-o", str(folder))
    assert run(server, *words).returncode == 0
    first = json.loads((folder / "manifest.json").read_text())["notes"]
    assert "decode prose: garbled output was allowed" in first
    assert run(server, "--resume", str(folder)).returncode == 0
    assert "decode prose: garbled output was allowed" in json.loads(
        (folder / "manifest.json").read_text()
    )["notes"]  # fmt: skip


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_was_killed_goes_on_where_it_was(
    server: ReplayServer, tmp_path: Path, how: signal.Signals
) -> None:
    folder = tmp_path / "run"
    server.behaviour = "slow"
    words = command(server, "--kinds", "prose", "-c", "1", "--rounds", "2", "-o", str(folder))
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as killed:
        assert killed.stderr is not None
        for line in killed.stderr:
            if "[1/3]" in line:
                break
        time.sleep(0.2)
        killed.send_signal(how)
        rest = killed.stderr.read()
        status = killed.wait(20)
    if how == signal.SIGINT:
        assert status == 130 and "--resume" in rest
    first = records(folder)
    assert len(first) == 1
    with (folder / "requests.jsonl").open("a") as file:
        file.write('{"schema_version": 1, "reques')  # as if killed in the middle of a line
    server.behaviour = "good"
    done = run(server, "--resume", str(folder))
    assert done.returncode == 0, done.stderr
    found = records(folder)
    assert found[0] == first[0] and len(found) == 3 and (folder / "manifest.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--suite", "speed"),
        ("--kinds", "poems"),
        ("-c", "two"),
        ("--protocol", "mine"),
        ("--protocol", "lil", "--suite", "soak"),
        ("--after-restart",),
        ("--api-key-file", "/nonexistent"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(server: ReplayServer, words: tuple[str, ...]) -> None:
    done = run(server, *words)
    assert done.returncode == 2 and "error:" in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_a_wrong_word_is_named_before_a_cluster_is_looked_for(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "launcher", "bench", "--suite", "nope"]
    home = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, env=home)
    assert done.returncode == 2 and "--suite must be of" in done.stderr and "'nope'" in done.stderr
