"""`up` calls nothing ready whose ranks have not reported. `audit` of a plain model is in test_embedded.py,
whose engine it shares.
"""

from __future__ import annotations

import threading
import time

import pytest

from tests.cluster.leftovers import assert_nothing_left, engine_processes, free_ports, shared_memory_of
from tests.cluster.sparkctl_process import Sparkctl, assert_one_clear_error

pytestmark = [pytest.mark.sglang, pytest.mark.slow, pytest.mark.timeout(300)]


def remove_first_report(local: Sparkctl, shared_memory: set[str], stop: threading.Event) -> None:
    """As if the plugin had not proved its hooks: the report goes as soon as it is written."""
    runs = local.home / ".local/state/sparkctl/node-0/runs"
    while not stop.is_set():
        for report in runs.glob("*/reports/rank-00.json"):
            shared_memory |= shared_memory_of([found.pid for found in engine_processes(local.home)])
            report.unlink()
            return
        time.sleep(0.02)


def test_up_ends_a_run_that_has_not_reported(local: Sparkctl) -> None:
    port, shared_memory, stop = free_ports(1), set[str](), threading.Event()
    removing = threading.Thread(target=remove_first_report, args=(local, shared_memory, stop))
    removing.start()
    try:
        done = local.run("up", "--recipe", "local-1x", "--port", str(port), timeout_s=200)
    finally:
        stop.set()
        removing.join()
    assert_one_clear_error(
        done, "every rank must run as planned", "node-0 rank 0: reports/rank-00.json", exit_code=6
    )
    assert "ready after" not in done.output
    assert local.record(local.run_ids()[-1])["status"] == "failed"
    assert_nothing_left(local.home, shared_memory, [port])
