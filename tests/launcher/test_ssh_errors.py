"""Every exception class that paramiko defines has one meaning here; paramiko loads only for SSH."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import AuthenticationRefused, NodeUnreachable
from launcher.ssh_errors import EXCEPTION_MAP, NEVER_SEEN, explain_ssh_error
from launcher.ssh_paramiko import paramiko
from launcher.ssh_target import SshEndpoint, SshTarget, resolve_target

ROOT = Path(__file__).parents[2]


def paramiko_exceptions() -> set[type[BaseException]]:
    found: set[type[BaseException]] = set()
    for module in pkgutil.iter_modules(paramiko.__path__, "paramiko."):
        if module.name in ("paramiko._winapi", "paramiko.win_pageant", "paramiko.win_openssh"):
            continue  # load on Windows only
        members = inspect.getmembers(importlib.import_module(module.name), inspect.isclass)
        errors = {c for _, c in members if issubclass(c, BaseException)}
        found |= {c for c in errors if c.__module__.startswith("paramiko")}
    return found


@pytest.fixture
def end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshEndpoint:
    monkeypatch.setenv("HOME", str(tmp_path))
    return resolve_target(SshTarget(node="n1", host="spark1", user="ann"))


def test_the_map_is_complete() -> None:
    classes = paramiko_exceptions()
    assert len(classes) > 15
    missing = {c.__name__ for c in classes if c not in EXCEPTION_MAP and c.__name__ not in NEVER_SEEN}
    assert missing == set()
    assert not {c.__name__ for c in EXCEPTION_MAP} & set(NEVER_SEEN)


@pytest.mark.parametrize(
    ("error", "kind", "got"),
    [
        (ConnectionRefusedError(111, "refused"), NodeUnreachable, "connection refused"),
        (TimeoutError(), NodeUnreachable, "no answer"),
        (OSError(113, "No route to host"), NodeUnreachable, "No route to host"),
        (EOFError(), NodeUnreachable, "a closed connection"),
        (paramiko.SSHException("Timeout opening channel."), NodeUnreachable, "no answer"),
        (paramiko.SSHException("odd"), NodeUnreachable, "odd"),
        (paramiko.ssh_exception.IncompatiblePeer("no kex"), NodeUnreachable, "no kex"),
        (paramiko.ChannelException(1, "prohibited"), NodeUnreachable, "prohibited"),
        (paramiko.BadAuthenticationType("bad", ["password"]), AuthenticationRefused, "wants password"),
        (paramiko.AuthenticationException("Authentication timeout."), AuthenticationRefused, "timeout"),
        (
            paramiko.ssh_exception.NoValidConnectionsError({("::1", 22): ConnectionRefusedError()}),
            NodeUnreachable,
            "connection refused",
        ),
    ],
)
def test_each_says_cause_place_and_next_command(
    end: SshEndpoint, error: Exception, kind: type[NodeUnreachable], got: str
) -> None:
    told = explain_ssh_error(error, end)
    assert type(told) is kind
    assert got in told.message and told.message.endswith("(spark1:22).")
    assert told.hint and told.node == "n1"


def test_a_bug_of_ours_is_not_explained_away(end: SshEndpoint) -> None:
    with pytest.raises(ZeroDivisionError):
        explain_ssh_error(ZeroDivisionError(), end)


def test_every_map_entry_makes_an_error(end: SshEndpoint) -> None:
    for kind, explain in EXCEPTION_MAP.items():
        told = explain(OSError(5, "text") if issubclass(kind, OSError) else Exception("text"), end)
        assert told.hint and "(spark1:22)." in told.message


def test_paramiko_is_imported_in_one_file_only() -> None:
    statement = re.compile(r"^\s*(import paramiko\b|from paramiko\b)", re.MULTILINE)
    files = [f for f in (ROOT / "launcher").rglob("*.py") if statement.search(f.read_text())]
    assert [f.name for f in files] == ["ssh_paramiko.py"]


def test_nothing_else_of_the_connections_loads_paramiko() -> None:
    code = (
        "import sys, launcher.run_on_all, launcher.local_remote, launcher.ssh_target;"
        "assert 'paramiko' not in sys.modules and 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_loading_paramiko_says_nothing() -> None:
    code = "import launcher.ssh_remote, logging; logging.getLogger('paramiko.transport').error('noise')"
    argv = [sys.executable, "-W", "default", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, check=True)
    assert (done.stdout, done.stderr) == ("", "")
