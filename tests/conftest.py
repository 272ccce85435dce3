"""What every test needs: Ctrl-C works in the commands that the tests start; two workers share the suite.

A shell that starts the suite in the background makes it ignore SIGINT, and children inherit that. A handler
of Python's own is reset to the default when a child is started.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before torch or numpy is imported. Their threads wait for each other by spinning: with two workers on two
# cores they take what the other one needs.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

HERE = Path(__file__).parent
# These hold bars in seconds, or start the embedded recipes, whose ports are fixed: one after the other.
ONE_AFTER_THE_OTHER = (
    HERE / "cluster",
    HERE / "hosts",
    HERE / "launcher/bench/test_on_engine.py",
    HERE / "launcher/doctor/test_netns_collective.py",
    HERE / "launcher/doctor/test_netns_doctor.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two workers: the tests of sgl_ext's engines, then one worker takes all that must run one after the
    other, which is the longest by far. Beside it the other one has what leaves a core free, longest first.
    """

    def place(item: pytest.Item) -> tuple[bool, bool, bool]:
        engine = item.get_closest_marker("sglang") is not None and not is_alone(item.path)
        return (not engine, not is_alone(item.path), not item.path.name.startswith("test_netns"))

    items.sort(key=place)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """`pytest -n 2`: a file stays in one worker, and all that must run one after the other in one.

    Not by `--dist loadgroup`: with pytest 9.2 xdist 3.8 no longer sees the groups.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "alone" if is_alone(config.rootpath / file) else file

    return ByFile(config, log)


def is_alone(path: Path) -> bool:
    return any(place == path or place in path.parents for place in ONE_AFTER_THE_OTHER)
