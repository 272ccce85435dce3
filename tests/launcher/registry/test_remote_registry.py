"""Add, pull, push and update over ssh with a real sshd, and over https with git's own server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from launcher.registry.errors import RegistryUnreachable
from tests.launcher.registry.conftest import Author, recipe_bytes, registry_files
from tests.launcher.registry.remote_git import SSHD, https_server, ssh_server
from tests.launcher.registry.test_sharing import run

needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SSHD).exists(), reason="needs sshd and root, as the tests of nodes do"
)
needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl for a certificate")


def share(url: str, author: Author, tmp_path: Path) -> None:
    """Add and pull, push a second version, see it after an update."""
    author.publish(registry_files({"small": {"1.0.0": recipe_bytes()}}))
    assert run("registry", "add", "team", url)["num_recipes"] == 1
    assert Path(run("pull", "@team/small")["file"]).read_bytes() == recipe_bytes()
    mine = tmp_path / "small.yaml"
    mine.write_bytes(recipe_bytes(server={"flags": {"device": "cpu"}, "max_running_requests": 2}))
    pushed = run("push", str(mine), "@team", "--branch", "main")
    assert author.git("rev-parse", "main") == pushed["commit"]
    assert run("registry", "update")[0]["added"] == ["small 1.0.1"]


@needs_sshd
def test_over_ssh(author: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ssh_server(tmp_path / "sshd") as (port, command):
        url = f"ssh://root@127.0.0.1:{port}{author.path}"
        monkeypatch.setenv("GIT_SSH_COMMAND", command.replace("client_key", "host_key"))
        with pytest.raises(RegistryUnreachable, match="Permission denied"):
            run("registry", "add", "team", url)
        monkeypatch.setenv("GIT_SSH_COMMAND", command)
        share(url, author, tmp_path)


@needs_openssl
def test_over_https(author: Author, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    author.git("config", "http.receivepack", "true")
    with https_server(tmp_path / "https", author.path.parent) as (port, certificate):
        url = f"https://localhost:{port}/{author.path.name}"
        with pytest.raises(RegistryUnreachable, match="certificate"):
            run("registry", "add", "team", url)
        monkeypatch.setenv("GIT_SSL_CAINFO", str(certificate))
        share(url, author, tmp_path)
