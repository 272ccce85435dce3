"""Children by fork: refused where it cannot work, and the real engine with it."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from sgl_ext.errors import EffectError, SettingError
from sgl_ext.hooks.fork_children import fork_children
from sgl_ext.settings import read_settings
from sgl_ext.tiny_model.conversations import read_conversations
from sgl_ext.tiny_model.qwen3 import make_qwen3_files
from sgl_ext.tiny_model.write_directory import write_directory

READY_TIMEOUT_S = 180.0
FORK = {"SGLANG_USE_CPU_ENGINE": "1", "SPARKCTL_FORK_CHILDREN": "1"}


def test_off_unless_asked_for() -> None:
    assert not read_settings({"SGLANG_USE_CPU_ENGINE": "1"}).fork_children
    assert read_settings(FORK).fork_children


def test_a_gpu_engine_is_refused() -> None:
    with pytest.raises(SettingError, match="SGLANG_USE_CPU_ENGINE must be 1") as caught:
        read_settings({"SPARKCTL_FORK_CHILDREN": "1"})
    assert caught.value.hint == "unset SPARKCTL_FORK_CHILDREN"


def test_a_second_thread_is_refused() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        with pytest.raises(EffectError, match="must have 1 thread to fork its children, got"):
            fork_children(None, object())
    finally:
        stop.set()
        thread.join()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def names_in_session(session: int) -> list[str]:
    names = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            before, _, after = path.read_text().rpartition(")")
            if int(after.split()[3]) == session:
                names.append(before.partition("(")[2])
    return sorted(names)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int, Path]]:
    """Two ranks on one node, started as a user would; killed with everything of its session."""
    write_directory(tmp_path / "tiny", make_qwen3_files())
    (tmp_path / "reports").mkdir()
    port = free_port()
    words = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model-path",
        str(tmp_path / "tiny"),
        "--tp",
        "2",
    ]
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-total-tokens", "4096", "--dtype", "float32"]
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "SGLANG_CPU_OMP_THREADS_BIND": "0|0",
        "HF_HUB_OFFLINE": "1",
        "SPARKCTL_REPORT_DIR": str(tmp_path / "reports"),
        **FORK,
    }
    with (tmp_path / "engine.log").open("wb") as log:
        process = subprocess.Popen(
            words, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield process, port, tmp_path
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ask(port: int, question: str) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": question}], "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/chat/completions",
        json.dumps({**body, "max_tokens": 100}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, log.read_text()[-3000:]
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5),
        ):
            return
        time.sleep(0.2)
    pytest.fail(f"not ready within {READY_TIMEOUT_S} s: {log.read_text()[-3000:]}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed")
def test_the_real_engine(engine: tuple[subprocess.Popen[bytes], int, Path]) -> None:
    process, port, folder = engine
    wait_until_ready(process, port, folder / "engine.log")

    names = names_in_session(process.pid)
    assert [name for name in names if name.startswith("sglang::schedul")] == ["sglang::schedul"] * 2
    assert "sglang::detoken" in names
    # Every forked scheduler ran the plugin for itself: each rank has proved its hooks.
    assert {path.name for path in (folder / "reports").iterdir()} == {"rank-00.json", "rank-01.json"}

    for conversation in read_conversations()[:3]:
        assert ask(port, conversation.questions[0]) == conversation.answer

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    deadline_s = time.monotonic() + 15
    while names_in_session(process.pid) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert names_in_session(process.pid) == []
