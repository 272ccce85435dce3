"""`sparkctl dashboard` on the real engine in a real browser: loading, serving, frozen, dead."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cluster.leftovers import engine_processes, free_ports
from tests.cluster.sparkctl_process import Sparkctl
from tests.cluster.test_embedded import ask
from tests.launcher.dashboard.chromium import find_chromium, open_chromium

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(300)]


def wait_for_text(chrome: Chrome, selector: str, what: Callable[[str], object], timeout_s: float) -> str:
    deadline = time.monotonic() + timeout_s
    while True:
        text = str(chrome.execute_script(f"return document.querySelector({selector!r})?.innerText ?? ''"))
        if what(text):
            return text
        assert time.monotonic() < deadline, text
        time.sleep(0.1)


def test_the_page_follows_a_run_from_its_start_to_its_end(local: Sparkctl, tmp_path: Path) -> None:
    find_chromium()
    dashboard = local.start("dashboard", "--port", "0")
    dashboard.wait_for("dashboard  http://", 60)
    found = re.search(r"dashboard {2}(http://127\.0\.0\.1:\d+/)\n", dashboard.output)
    assert found, dashboard.output
    with open_chromium(tmp_path) as chrome:
        chrome.get(found[1])
        wait_for_text(chrome, "#runs", lambda text: "No cluster is running" in text, 60)
        port = free_ports(1)
        up = local.start("up", "--recipe", "local-1x", "--port", str(port))
        wait_for_text(chrome, ".run-head", lambda text: "loading" in text, 60)
        wait_for_text(chrome, ".load", lambda text: "importing the engine" in text, 60)
        assert up.wait(240).exit_code == 0, up.output
        wait_for_text(chrome, ".run-head", lambda text: "serving" in text, 60)
        for _ in range(3):
            ask(f"http://127.0.0.1:{port}/v1", "How fast is it?", stream=False)
        measured = re.compile(r"Tokens per second\s+(?!0\.0)[\d.]+")
        text = wait_for_text(chrome, ".figures", measured.search, 60)
        assert "of 8,192 tokens" in text and "no draft verified" in text

        status = local.run("status")
        assert re.search(r"load    tokens/s \d+\.\d, tokens/step not measured, KV in use", status.stdout), (
            status.output
        )
        assert local.run("status", "--json").json()["metrics"]["kv_tokens"] == 8192

        (scheduler,) = [item for item in engine_processes(local.home) if "sglang::scheduler" in item.title]
        os.kill(scheduler.pid, signal.SIGSTOP)
        wait_for_text(chrome, "tr[data-status]", lambda text: f"pid {scheduler.pid}" in text, 60)
        os.kill(scheduler.pid, signal.SIGKILL)
        wait_for_text(chrome, ".run-head", lambda text: "dead" in text, 60)
        assert "SIGKILL" in wait_for_text(chrome, "tr[data-status]", lambda text: "SIGKILL" in text, 60)
        assert local.run("down").exit_code == 0
        wait_for_text(chrome, "#runs", lambda text: "No cluster is running" in text, 60)
    dashboard.send_interrupt()
    assert dashboard.wait(60).exit_code == 0, dashboard.output
