"""What every test needs: Ctrl-C works in the commands that the tests start; two workers share the suite.

A shell that starts the suite in the background makes it ignore SIGINT, and children inherit that. A handler
of Python's own is reset to the default when a child is started.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HERE = Path(__file__).parent
# These hold bars in seconds, or start the embedded recipes, whose ports are fixed: one after the other.
ONE_AFTER_THE_OTHER = (HERE / "cluster", HERE / "hosts", HERE / "launcher/bench/test_on_engine.py")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups tests for `pytest -n 2 --dist loadgroup`: a file stays in one worker.

    The engines' tests come first and the bars in seconds last, when the other worker has nothing left to do.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("alone" if is_alone(item.path) else str(item.path)))
    items.sort(key=lambda item: (is_alone(item.path), item.get_closest_marker("sglang") is None))


def is_alone(path: Path) -> bool:
    here = any(place == path or place in path.parents for place in ONE_AFTER_THE_OTHER)
    return here or path.name.startswith("test_netns")
