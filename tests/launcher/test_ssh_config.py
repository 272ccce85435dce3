"""ssh_config and ssh_target: what the SSH configuration says, compared with `ssh -G`."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.errors import ConfigError
from launcher.ssh_config import read_ssh_settings
from launcher.ssh_target import SshTarget, resolve_target

CONFIG = """\
# a comment
Include extra/*.conf
Host gx10-?? !gx10-99
    HostName=%h.fabric
    User  "nv user"
    IdentityFile ~/.ssh/first   # trailing comment
Host gx10-01
    user ignored
    Port 2201
    IdentityFile /keys/%r@%h
    IdentitiesOnly yes
    UserKnownHostsFile ~/.ssh/a ~/.ssh/b
    ProxyJump jumper@gate:2022
Match originalhost spark1 user ann
    Port 2300
Match host *.fabric !originalhost gx10-02
    HostKeyAlias shared
Host *
    Port 22
    IdentityFile ~/.ssh/last
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh" / "extra").mkdir(parents=True)
    (tmp_path / ".ssh" / "config").write_text(CONFIG)
    (tmp_path / ".ssh" / "extra" / "1.conf").write_text("Host included\n  HostName 10.1.1.1\n  User inc\n")
    return tmp_path


@pytest.fixture
def config(home: Path) -> Path:
    return home / ".ssh" / "config"


def test_all_settings(home: Path) -> None:
    found = read_ssh_settings("gx10-01")
    assert (found.host_name, found.user, found.port) == ("gx10-01.fabric", "nv user", 2201)
    keys = [home / ".ssh/first", Path("/keys/nv user@gx10-01.fabric"), home / ".ssh/last"]
    assert list(found.identity_files) == keys
    assert found.identities_only
    assert found.user_known_hosts_files == (home / ".ssh/a", home / ".ssh/b")
    assert found.proxy_jump == "jumper@gate:2022"
    assert found.host_key_alias == "shared"


def test_include_with_glob_under_dot_ssh(home: Path) -> None:
    found = read_ssh_settings("included")
    assert (found.host_name, found.user) == ("10.1.1.1", "inc")


def test_include_inside_a_host_block_is_conditional(home: Path, config: Path) -> None:
    (home / ".ssh" / "more").write_text("User from-more\n")
    config.write_text("Host a\n  Include more\nHost b\n  Port 7\n")
    assert read_ssh_settings("a").user == "from-more"
    assert read_ssh_settings("b").user is None


@pytest.mark.skipif(shutil.which("ssh") is None, reason="needs the OpenSSH client to compare with")
@pytest.mark.parametrize("alias", ["gx10-01", "gx10-02", "gx10-99", "spark1", "other"])
@pytest.mark.parametrize("user", [None, "ann"])
def test_same_as_openssh(home: Path, config: Path, alias: str, user: str | None) -> None:
    text = config.read_text().replace("Include extra/*.conf\n", f"Include {home}/.ssh/extra/*.conf\n")
    config.write_text(text.replace('"nv user"', "nv").replace("~", str(home)))
    login = ["-l", user] if user else []
    argv = ["ssh", "-G", "-F", str(config), *login, alias]
    lines = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()
    theirs = [line.split(" ", 1) for line in lines]
    ours = resolve_target(SshTarget(node="n", host=alias, user=user, config_file=config))
    settings = read_ssh_settings(alias, config_file=config, user=user)
    assert ["hostname", ours.host] in theirs
    assert ["user", ours.user] in theirs
    assert ["port", str(ours.port)] in theirs
    # ssh -G leaves tokens of later settings unexpanded
    files = [
        value.replace("%r", ours.user).replace("%h", ours.host)
        for key, value in theirs
        if key == "identityfile"
    ]
    assert [str(file) for file in settings.identity_files] == files
    assert (["identitiesonly", "yes"] in theirs) == settings.identities_only
    assert [value for key, value in theirs if key == "proxyjump"] == [
        jump for jump in [settings.proxy_jump] if jump
    ]
    aliases = [value for key, value in theirs if key == "hostkeyalias"]
    assert aliases == [alias for alias in [settings.host_key_alias] if alias]


def test_explicit_values_win(home: Path) -> None:
    end = resolve_target(
        SshTarget(
            node="n",
            host="gx10-01",
            port=9,
            user="me",
            identity_file=Path("~/k"),
            proxy_jump="none",
            known_hosts_files=(home / "kh",),
        )
    )
    assert (end.host, end.port, end.user, end.via) == ("gx10-01.fabric", 9, "me", None)
    assert end.identity_files == (home / "k",)
    assert end.known_hosts_files == (home / "kh",)
    assert end.only_identity_files


def test_jump_chain_and_pasteable_command(home: Path) -> None:
    end = resolve_target(SshTarget(node="n", host="h", user="u", proxy_jump="a@one:1,b@two,ssh://c@three:3"))
    assert end.where == "h:22 via three:3 via two:22 via one:1"
    assert end.ssh_command("true").endswith("-J a@one:1,b@two:22,c@three:3 u@h true")


def test_ipv6_jump_and_where(home: Path) -> None:
    end = resolve_target(SshTarget(node="n", host="fe80::1", proxy_jump="[fd00::2]:2022"))
    assert end.where == "[fe80::1]:22 via [fd00::2]:2022"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Port many\n", r"Port must be 1 to 65535, got many \(.*config:1\)"),
        ("\n\nPort 99999\n", r"got 99999 \(.*config:3\)"),
        ("Host\n", r"lines 'Keyword value', got 'Host' \(.*:1\)"),
        ('User "a\n', r"must close its quotes"),
        ("Match exec true\n", r"Match must use host, .* got exec \(.*:1\)"),
        ("Include config\n", r"Include must be at most 16 deep"),
        ("ProxyCommand nc %h %p\n", r"must use ProxyJump, got ProxyCommand nc %h %p"),
        ("ProxyJump a b c\nProxyJump x\nHostName %h\n", None),
    ],
)
def test_bad_configuration_says_where(home: Path, config: Path, text: str, message: str | None) -> None:
    config.write_text(text)
    if message is None:
        assert resolve_target(SshTarget(node="n", host="h", proxy_jump="none")).host == "h"
        return
    with pytest.raises(ConfigError, match=message):
        resolve_target(SshTarget(node="n", host="h"))


def test_match_exec_of_another_host_does_no_harm(home: Path, config: Path) -> None:
    config.write_text("Match host other exec true\n  User x\nHost h\n  User y\n")
    assert read_ssh_settings("h").user == "y"


def test_bad_jump_and_missing_file(home: Path) -> None:
    with pytest.raises(ConfigError, match=r"proxy_jump must be \[user@\]host\[:port\], got 'a b:x'"):
        resolve_target(SshTarget(node="n", host="h", proxy_jump="a b:x"))
    with pytest.raises(ConfigError, match="must be a file, got nothing there"):
        resolve_target(SshTarget(node="n", host="h", config_file=home / "none"))


@pytest.mark.parametrize(
    ("agent", "seen"),
    [
        ("", "/env.sock"),
        ("IdentityAgent none", ""),
        ("IdentityAgent SSH_AUTH_SOCK", "/env.sock"),
        ("IdentityAgent $OTHER", "/other.sock"),
        ("IdentityAgent ${OTHER}", "/other.sock"),
        ('IdentityAgent "~/a b/agent.sock"', "HOME/a b/agent.sock"),
    ],
)
def test_agent_socket(
    home: Path, config: Path, monkeypatch: pytest.MonkeyPatch, agent: str, seen: str
) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/env.sock")
    monkeypatch.setenv("OTHER", "/other.sock")
    config.write_text(agent + "\n")
    end = resolve_target(SshTarget(node="n", host="h"))
    assert end.agent_socket == seen.replace("HOME", str(home))
