"""The supervisor of one node, with a stand-in for the engine:
it sees every end, and leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.call_node import NodeStream
from launcher.errors import PreflightRefused
from launcher.node.processes import Process
from launcher.node.supervise import Supervisor
from tests.launcher.node_run import NodeRun, kill_all, pids_of

pytestmark = pytest.mark.timeout(60)
SECRET = "sk-a-secret-of-this-test-0123456789"


@pytest.fixture
def run(tmp_path: Path) -> Iterator[NodeRun]:
    yield NodeRun(tmp_path)
    kill_all(str(tmp_path))


def assert_nothing_left(run: NodeRun) -> None:
    assert pids_of(str(run.state_path)) == set()
    assert {path.name for path in run.run_dir.iterdir()} == {
        "engine.log", "node.pyz", "reports", "state.json", "supervisor.log",
    }  # fmt: skip
    assert (run.run_dir / "supervisor.log").read_bytes() == b""
    assert not temp_links(run)


def temp_links(run: NodeRun) -> list[Path]:
    """Short ways to the engine's temporary files: its sockets need one."""
    links = [path for path in Path("/tmp").glob("sparkctl-*") if path.is_symlink()]
    return [link for link in links if run.state_path in link.readlink().parents]


# Ends --------------------------------------------------------------------------------------------------


def test_a_stop_on_request_and_again(run: NodeRun) -> None:
    run.start().wait_for_rank()
    answer = run.stop()
    assert len(answer["ended"]) == 3 and answer["left"] == []  # supervisor, engine, scheduler
    assert answer["end"]["kind"] == "stopped"
    assert_nothing_left(run)
    assert run.stop()["ended"] == []


def test_a_killed_scheduler_is_the_cause_though_its_main_process_exits_with_0(run: NodeRun) -> None:
    """A worker's main process ends at once, and with 0, when its scheduler is killed."""
    pid = run.start("worker").wait_for_rank()
    os.kill(pid, signal.SIGKILL)
    end = run.wait_for_end()
    assert (end["kind"], end["pid"], end["signal"]) == ("rank", pid, 9)
    assert end["what"].startswith("sglang::scheduler_TP0")
    assert_nothing_left(run)


def test_a_killed_main_process_is_the_cause_though_its_children_die_too(run: NodeRun) -> None:
    run.start().wait_for_rank()
    pid = run.state["engine_pid"]
    os.kill(pid, signal.SIGKILL)
    end = run.wait_for_end()
    assert (end["kind"], end["pid"], end["signal"]) == ("engine", pid, 9)
    assert_nothing_left(run)


def test_an_engine_that_exits_by_itself(run: NodeRun) -> None:
    run.start("exit-3")
    end = run.wait_for_end()
    assert (end["kind"], end["exit_code"]) == ("engine", 3)
    assert b"ValueError: a reason" in run.log()
    assert_nothing_left(run)


def test_an_engine_that_exits_with_0_has_ended_too(run: NodeRun) -> None:
    run.start("exit-0")
    end = run.wait_for_end()
    assert end["kind"] in ("rank", "engine") and "ended" in end["what"]
    assert_nothing_left(run)


def test_a_scheduler_that_dies_before_it_was_ever_seen(run: NodeRun) -> None:
    run.start("die-unseen")
    end = run.wait_for_end()
    assert end["kind"] in ("engine", "rank")
    assert b"Rank 0 scheduler died" in run.log()
    assert_nothing_left(run)


def test_an_engine_that_cannot_be_started(run: NodeRun) -> None:
    run.start(argv=["/nowhere/bin/python"])
    end = run.wait_for_end()
    assert end["kind"] == "start" and "No such file" in end["what"]
    assert pids_of(str(run.state_path)) == set()


def test_an_engine_that_ignores_sigterm(run: NodeRun) -> None:
    run.start("ignore-term").wait_for_rank()
    started = time.monotonic()
    assert run.stop()["left"] == []
    assert time.monotonic() - started < 60
    assert_nothing_left(run)


def test_children_with_a_session_and_environment_of_their_own(run: NodeRun) -> None:
    run.start("setsid", "orphan").wait_for_rank()
    assert len(run.wait_for(lambda found: len(found["processes"]) >= 5)["processes"]) >= 5
    run.stop()
    assert_nothing_left(run)


def test_a_stopped_rank_is_told_and_then_ends_the_run(run: NodeRun) -> None:
    # Long enough that asking a busy node for it does not take as long.
    pid = run.start(limits={"freeze_timeout_s": 5.0, "drain_s": 0.5}).wait_for_rank()
    os.kill(pid, signal.SIGSTOP)
    assert run.wait_for(lambda found: found["state"].get("frozen") == [pid])["status"] == "running"
    os.kill(pid, signal.SIGCONT)
    run.wait_for(lambda found: found["state"].get("frozen") == [])
    os.kill(pid, signal.SIGSTOP)
    end = run.wait_for_end()
    assert (end["kind"], end["pid"]) == ("frozen", pid) and "SIGSTOP" in end["what"]
    assert_nothing_left(run)


# The supervisor itself ------------------------------------------------------------------------------------


def test_a_killed_supervisor_takes_its_engine_along(run: NodeRun) -> None:
    run.start().wait_for_rank()
    state = run.state
    os.kill(state["supervisor_pid"], signal.SIGKILL)
    deadline = time.monotonic() + 60
    while state["engine_pid"] in pids_of(str(run.state_path)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state["engine_pid"] not in pids_of(str(run.state_path))
    assert run.describe()["status"] == "orphaned"  # the stand-in's scheduler outlives its parent
    answer = run.stop()
    assert len(answer["ended"]) == 1 and answer["left"] == []
    assert pids_of(str(run.state_path)) == set()
    assert run.describe()["status"] == "ended"
    assert not (run.run_dir / "node.json").exists() and not temp_links(run)


def test_a_frozen_supervisor_is_ended_all_the_same(run: NodeRun) -> None:
    run.start().wait_for_rank()
    os.kill(run.state["supervisor_pid"], signal.SIGSTOP)
    assert run.describe()["status"] == "frozen"
    started = time.monotonic()
    assert run.stop()["left"] == []
    assert time.monotonic() - started < 60
    assert pids_of(str(run.state_path)) == set()


def test_a_damaged_record_still_leads_to_the_processes(run: NodeRun) -> None:
    run.start().wait_for_rank()
    supervisor = run.state["supervisor_pid"]
    os.kill(supervisor, signal.SIGSTOP)  # so that it does not write the record anew
    (run.run_dir / "state.json").write_text('{"run_id": "ru')
    assert run.describe()["status"] == "damaged" and len(temp_links(run)) == 1
    assert run.stop()["left"] == []
    assert pids_of(str(run.state_path)) == set() and not temp_links(run)


def test_a_recorded_pid_that_somebody_else_has_now(run: NodeRun) -> None:
    """After the supervisor's end its number goes to an unrelated program, a session leader like it."""
    run.start().wait_for_rank()
    run.stop()
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
    try:
        path = run.run_dir / "state.json"
        path.write_text(path.read_text().replace(str(run.state["supervisor_pid"]), str(other.pid)))
        assert run.describe()["status"] == "ended"
        assert run.stop()["ended"] == []
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_run_of_before_the_last_boot(run: NodeRun) -> None:
    run.start().wait_for_rank()
    boot = run.state["boot_id"]
    path = run.run_dir / "state.json"
    os.kill(run.state["supervisor_pid"], signal.SIGSTOP)
    text = path.read_text()
    path.write_text(text.replace(boot, "another-boot"))
    assert run.describe()["status"] == "ended"
    assert run.stop()["ended"] == []
    path.write_text(text)
    assert len(run.stop()["ended"]) == 3


# Start -----------------------------------------------------------------------------------------------------


def test_an_earlier_run_is_named(run: NodeRun) -> None:
    run.start().wait_for_rank()
    second = NodeRun(run.state_path)
    with pytest.raises(PreflightRefused, match=f"still alive: {run.run_id}, running since") as caught:
        second.start()
    assert f"sparkctl down --run {run.run_id}" in caught.value.hint
    assert not second.run_dir.exists()
    run.stop()


def test_two_starts_at_once_and_exactly_one_wins(run: NodeRun) -> None:
    runs = [NodeRun(run.state_path) for _ in range(4)]
    refused: list[str] = []

    def start(one: NodeRun) -> None:
        try:
            one.start()
        except PreflightRefused as refusal:
            refused.append(refusal.message)

    threads = [threading.Thread(target=start, args=(one,)) for one in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 3 and all("still alive" in text for text in refused)
    (won,) = (one for one in runs if one.run_dir.exists())
    won.stop()
    assert_nothing_left(won)


def test_a_stop_that_overtakes_the_start(run: NodeRun) -> None:
    """Ctrl-C: the stop arrives, the start is still on its way. It must find the run ended."""
    run.stop(refuse_start=True)
    with pytest.raises(PreflightRefused, match="ended meanwhile"):
        run.start()
    assert pids_of(str(run.state_path)) == set()


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.15, 0.2, 0.3])
def test_a_stop_while_the_start_goes_on(run: NodeRun, delay_s: float) -> None:
    outcome: list[BaseException | None] = []

    def start() -> None:
        try:
            run.start()
            outcome.append(None)
        except PreflightRefused as refusal:
            outcome.append(refusal)

    thread = threading.Thread(target=start)
    thread.start()
    time.sleep(delay_s)
    run.stop(refuse_start=True)
    thread.join()
    assert len(outcome) == 1
    assert pids_of(str(run.state_path)) == set()
    assert run.describe()["status"] == "ended"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("options", ["size=1m,ro", "size=8k"])
def test_a_directory_that_takes_no_files(run: NodeRun, options: str) -> None:
    place = run.state_path / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
    try:
        with pytest.raises(PreflightRefused, match="cannot be written") as caught:
            NodeRun(place).start()
        assert "paths.state" in caught.value.hint
    finally:
        kill_all(str(place))
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_disk_that_fills_up_under_a_run(run: NodeRun) -> None:
    place = run.state_path / "place"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=True)
    try:
        small = NodeRun(place)
        pid = small.start(limits={"freeze_timeout_s": 60.0, "drain_s": 0.5}).wait_for_rank()
        with (place / "ballast").open("wb", buffering=0) as ballast, pytest.raises(OSError, match="No space"):
            while True:
                ballast.write(bytes(4096))
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1)
        os.kill(pid, signal.SIGCONT)
        time.sleep(1)
        assert small.describe()["status"] == "running"
        os.kill(pid, signal.SIGKILL)
        end = small.wait_for_end()
        assert (end["kind"], end["signal"]) == ("rank", 9)  # secrets made room for the last word
        assert pids_of(str(place)) == set()
    finally:
        kill_all(str(place))
        subprocess.run(["umount", "--lazy", str(place)], check=True)


# Shared memory ---------------------------------------------------------------------------------------------


def test_only_the_shared_memory_of_the_run_is_removed(run: NodeRun) -> None:
    shared = Path("/dev/shm")
    name = f"sparkctl-test-{uuid.uuid4().hex}"
    free, held = shared / f"{name}-free", shared / f"{name}-held"
    free.write_bytes(b"x")
    with held.open("wb"):
        run.start(f"shm={name}").wait_for(lambda found: name in found["state"].get("shared_memory", []))
        os.kill(run.wait_for_rank(), signal.SIGKILL)
        run.wait_for_end()
        assert not (shared / name).exists() and run.state["shared_memory_removed"] == [name]
        assert free.exists() and held.exists()
    free.unlink()
    held.unlink()


def test_shared_memory_is_removed_after_the_supervisor_and_all_else_was_killed(run: NodeRun) -> None:
    name = f"sparkctl-test-{uuid.uuid4().hex}"
    run.start(f"shm={name}").wait_for(lambda found: name in found["state"].get("shared_memory", []))
    kill_all(str(run.state_path))
    assert (Path("/dev/shm") / name).exists()
    assert run.stop()["shared_memory_removed"] == [name]
    assert not (Path("/dev/shm") / name).exists()


# Log and watch ---------------------------------------------------------------------------------------------


def test_secrets_are_masked_wherever_the_pieces_are_cut(run: NodeRun) -> None:
    text = f"server_args={{'api_key': '{SECRET}'}}\nplain {SECRET} end\nlast {SECRET}"
    (run.state_path / "text").write_text(text)
    run.start(f"print={run.state_path}/text", secrets={"api-key": SECRET})
    run.wait_for_rank()
    assert (run.run_dir / "engine.yaml").stat().st_mode & 0o777 == 0o600
    assert SECRET in (run.run_dir / "engine.yaml").read_text()
    run.stop()
    log = run.log().decode()
    assert (
        SECRET not in log and SECRET[:12] not in log and "plain *** end" in log and "'api_key': '***'" in log
    )
    assert_nothing_left(run)


def test_a_watch_tells_log_state_and_end_and_resumes_at_an_offset(run: NodeRun) -> None:
    run.start("exit-3")
    with run.stream(log_offset=0) as stream:
        first = read_until(stream, "log")
        assert first["offset"] == len(first["log"]) > 7
    rest, end = b"", None
    with run.stream(log_offset=7) as stream:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                answer = stream.read(0.5)
            except EOFError:
                break
            rest += str((answer or {}).get("log", "")).encode("latin-1")
            end = ((answer or {}).get("state") or {}).get("end") or end
    assert rest == run.log()[7:] and b"a reason" in rest
    assert end is not None and end["exit_code"] == 3


def read_until(stream: NodeStream, key: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        answer = stream.read(0.5)
        if answer and key in answer:
            return dict(answer)
    raise AssertionError(key)


def test_a_watch_sees_a_killed_and_a_frozen_supervisor(run: NodeRun) -> None:
    run.start().wait_for_rank()
    pid = run.state["supervisor_pid"]
    with run.stream(log_offset=-1) as stream:
        os.kill(pid, signal.SIGSTOP)
        while read_until(stream, "supervisor")["supervisor"] != "frozen":
            pass
        os.kill(pid, signal.SIGKILL)
        while read_until(stream, "supervisor")["supervisor"] != "gone":
            pass
    run.stop()


def test_a_watch_ends_with_its_launcher(run: NodeRun) -> None:
    run.start().wait_for_rank()
    with run.stream(log_offset=0) as stream:
        read_until(stream, "beat")
        before = pids_of(str(run.state_path))
    time.sleep(0.5)
    assert pids_of(str(run.state_path)) == before  # the run goes on without us
    run.stop()


def test_what_a_scheduler_forks_is_no_rank() -> None:
    """It has the scheduler's title until it runs another program; its end with status 0 ended whole runs."""
    supervisor: Any = object.__new__(Supervisor)
    supervisor.engine = SimpleNamespace(pid=10)

    def process(pid: int, parent_pid: int) -> Process:
        title = "sglang::scheduler_TP0"
        return Process(pid=pid, parent_pid=parent_pid, session=1, state="S", start_ticks=1, title=title)

    assert supervisor._is_part_of_engine(process(11, 10), {11, 12})
    assert not supervisor._is_part_of_engine(process(12, 11), {11, 12})
