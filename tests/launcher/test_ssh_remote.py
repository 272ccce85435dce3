"""SshRemote against real OpenSSH servers in network namespaces."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import (
    AuthenticationRefused,
    ConfigError,
    ConnectionLost,
    HostKeyChanged,
    HostKeyUnknown,
    NodeFailed,
    NodeUnreachable,
)
from launcher.run_on_all import errors_of, group_by_reason, run_on_all
from launcher.ssh_paramiko import paramiko
from launcher.ssh_remote import SshRemote
from launcher.ssh_target import SshTarget
from tests.hosts import NETNS_MARKS, HostSpec, NetnsHosts, NetnsNode
from tests.hosts.ssh_files import make_key

pytestmark = [*NETNS_MARKS, pytest.mark.timeout(240)]

PATIENCE_S = 60.0  # for what comes at once on a free machine

SPECS = (
    HostSpec(name="node1"),
    HostSpec(name="node2", user="ann", port=2222, shell="/bin/sh"),
    HostSpec(name="node3", user="bob"),
)


@pytest.fixture(scope="module")
def hosts() -> Iterator[NetnsHosts]:
    with NetnsHosts(specs=SPECS) as hosts:
        yield hosts


@pytest.fixture(autouse=True)
def client_home(hosts: NetnsHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher's user has a home with keys, known hosts and configuration, and no agent."""
    monkeypatch.setenv("HOME", str(hosts.client_home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    hosts.trust_hosts()


def target_of(node: NetnsNode) -> SshTarget:
    return SshTarget(node=node.name, host=node.name, connect_timeout_s=PATIENCE_S, keepalive_s=5.0)


def wary_of(node: NetnsNode) -> SshTarget:
    """Notices silence within seconds; a server that is only slow must not look silent."""
    return replace(target_of(node), connect_timeout_s=3.0, keepalive_s=0.5)


@contextmanager
def remote_to(target: SshTarget) -> Iterator[SshRemote]:
    remote = SshRemote(target)
    try:
        yield remote
    finally:
        remote.close()


@pytest.fixture
def node(hosts: NetnsHosts) -> NetnsNode:
    return hosts["node1"]


@pytest.fixture
def remote(node: NetnsNode) -> Iterator[SshRemote]:
    with remote_to(target_of(node)) as remote:
        yield remote


@pytest.fixture
def wary(node: NetnsNode) -> Iterator[SshRemote]:
    with remote_to(wary_of(node)) as remote:
        yield remote


def wait_gone(node: NetnsNode, word: str, timeout_s: float = PATIENCE_S) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if not any(word in process.argv for process in node.processes()):
            return True
        time.sleep(0.02)
    return False


def end_of_file(channel_id: int) -> paramiko.Message:
    message = paramiko.Message()
    message.add_byte(paramiko.common.cMSG_CHANNEL_EOF)
    message.add_int(channel_id)
    return message


# Running commands


def test_each_node_has_its_own_user_port_home_and_name(hosts: NetnsHosts) -> None:
    remotes = [SshRemote(target_of(n)) for n in hosts.nodes]
    results = run_on_all(remotes, lambda r: r.run(["sh", "-c", 'hostname; id -un; echo "$HOME"']))
    seen = {name: result.unwrap().stdout.decode().split() for name, result in results.items()}
    assert seen == {n.name: [n.name, n.user, n.home_inside] for n in hosts.nodes}
    for remote in remotes:
        remote.close()


@pytest.mark.parametrize("name", ["node1", "node2"])
def test_arguments_arrive_as_they_are(hosts: NetnsHosts, name: str) -> None:
    words = [
        "it's",
        'say "hi"',
        "$HOME",
        "a b",
        "",
        "*",
        "`id`",
        "\\",
        "new\nline",
        "; exit 9",
        "~",
        "\u00e4",
    ]
    with remote_to(target_of(hosts[name])) as remote:
        result = remote.run(["printf", "%s\\0", *words])
    assert result.stdout.decode().split("\0")[:-1] == words


def test_ten_megabytes_each_way(remote: SshRemote) -> None:
    data = os.urandom(1 << 20) * 10
    result = remote.run(["tee", "/dev/stderr"], stdin=data)
    assert (result.exit_status, result.stdout == data, result.stderr == data) == (0, True, True)


def test_command_that_reads_no_stdin_still_ends(remote: SshRemote) -> None:
    assert remote.run(["true"], stdin=b"x" * (8 << 20)).exit_status == 0


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 7", 7), ("kill -KILL $$", 137), ("kill -TERM $$", 143), ("no-such-cmd", 127)],
)
def test_exit_status(remote: SshRemote, script: str, status: int) -> None:
    assert remote.run(["sh", "-c", script]).exit_status == status


def test_time_out_kills_the_command(hosts: NetnsHosts) -> None:
    with remote_to(target_of(hosts["node2"])) as remote:
        with pytest.raises(NodeFailed, match=r"sleep must end within 0.3 s, got no end; it was cut off"):
            remote.run(["sleep", "98"], timeout_s=0.3)
        assert wait_gone(hosts["node2"], "98")
        assert remote.run(["echo", "alive"]).stdout == b"alive\n"


def test_time_out_ends_a_talking_command_of_root(remote: SshRemote, node: NetnsNode) -> None:
    with pytest.raises(NodeFailed, match=r"sh must end within 0.3 s"):
        remote.run(["sh", "-c", "while sleep 0.1; do echo talk; done"], timeout_s=0.3)
    assert wait_gone(node, "sh")
    assert remote.run(["echo", "alive"]).stdout == b"alive\n"


def test_runaway_output_is_cut(node: NetnsNode) -> None:
    remote = SshRemote(target_of(node), max_output_bytes=100_000)
    with pytest.raises(NodeFailed, match=r"output of yes must be at most 100000 bytes, got more"):
        remote.run(["yes"])
    assert wait_gone(node, "yes")
    remote.close()


def test_many_threads_share_one_connection(remote: SshRemote) -> None:
    answers: list[bytes] = []

    def ask(number: int) -> None:
        answers.append(remote.run(["echo", str(number)]).stdout)

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [f"{n}\n".encode() for n in range(8)]


def test_a_message_after_a_channel_s_close_does_not_end_the_connection(remote: SshRemote) -> None:
    """Two threads can produce this; OpenSSH would answer by hanging up on every command of the node."""
    stream = remote.stream(["cat"], stdin=b"up\n")
    remote.run(["true"])
    link = remote._link
    assert link is not None
    channel = link.open_session()
    channel.exec_command("true")
    channel.status_event.wait(PATIENCE_S)
    channel.close()
    time.sleep(0.2)  # the server forgets a channel in its next round only
    link._transport._send_user_message(end_of_file(channel.remote_chanid))  # type: ignore[attr-defined]
    assert remote.run(["echo", "alive"]).stdout == b"alive\n"
    assert remote._link is link
    assert stream.read_line(PATIENCE_S) == b"up"


def test_too_many_commands_at_once_name_the_server_setting(remote: SshRemote) -> None:
    streams = [remote.stream(["cat"]) for _ in range(10)]
    with pytest.raises(NodeUnreachable, match="SSH server must open a channel") as caught:
        remote.run(["true"])
    assert "MaxSessions" in caught.value.hint
    for stream in streams:
        stream.close()


# Streams


def test_stream_lines_time_out_and_end(remote: SshRemote, node: NetnsNode) -> None:
    wait = "until [ -e $HOME/go ]; do sleep 0.02; done"
    stream = remote.stream(
        ["sh", "-c", f"read x; echo $x; {wait}; printf last; echo no >&2; exit 4"], stdin=b"in\n"
    )
    assert stream.read_line(PATIENCE_S) == b"in"
    assert stream.read_line(0.05) is None
    (node.home / "go").touch()
    assert stream.read_line(PATIENCE_S) == b"last"
    for _ in range(2):
        with pytest.raises(EOFError, match="status 4: no"):
            stream.read_line(PATIENCE_S)


def test_closing_a_stream_is_end_of_file_for_the_command(remote: SshRemote, node: NetnsNode) -> None:
    stream = remote.stream(["sh", "-c", "cat; echo ended > $HOME/eof"], stdin=b"one\n")
    assert stream.read_line(PATIENCE_S) == b"one"
    threading.Timer(0.2, stream.close).start()
    with pytest.raises(EOFError):
        while True:
            stream.read_line(PATIENCE_S)
    stream.close()
    assert wait_gone(node, "cat")
    deadline = time.monotonic() + PATIENCE_S
    while not (node.home / "eof").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (node.home / "eof").read_text() == "ended\n"


def test_idle_link_stays_up(wary: SshRemote) -> None:
    stream = wary.stream(["sh", "-c", "sleep 3; echo late"])
    assert stream.read_line(PATIENCE_S) == b"late"  # six keepalive periods; four without an answer end it


def test_unplugged_cable_ends_stream_and_run(wary: SshRemote, node: NetnsNode) -> None:
    stream = wary.stream(["cat"], stdin=b"up\n")
    assert stream.read_line(PATIENCE_S) == b"up"
    node.unplug()
    try:
        started = time.monotonic()
        with pytest.raises(ConnectionLost, match=r"got no answer for 2 s \(10\.77\.\d+\.1:22\)") as caught:
            while True:
                stream.read_line(1)
        assert time.monotonic() - started < PATIENCE_S
        assert "cable" in caught.value.hint and "ssh -p 22" in caught.value.hint
        stream.close()
        with pytest.raises(NodeUnreachable, match="answer within 3 s, got"):
            wary.run(["true"])
    finally:
        node.plug()
    assert wary.run(["echo", "back"]).stdout == b"back\n"


def test_frozen_server_is_noticed(wary: SshRemote, node: NetnsNode) -> None:
    stream = wary.stream(["cat"])
    sessions = [p.pid for p in node.sshd_processes()]
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(ConnectionLost, match="no answer"):
            while True:
                stream.read_line(1)
        with (
            pytest.raises(NodeUnreachable, match=r"answer within 1 s, got no answer"),
            remote_to(replace(target_of(node), connect_timeout_s=1.0)) as second,
        ):
            second.run(["true"])
    finally:
        for pid in sessions:
            os.kill(pid, signal.SIGCONT)


def test_server_killed_during_a_run(remote: SshRemote, node: NetnsNode) -> None:
    remote.run(["true"])
    killer = threading.Timer(0.3, node.stop_sshd)
    killer.start()
    started = time.monotonic()
    try:
        with pytest.raises(ConnectionLost, match=r"closed by the other end|reset by peer"):
            remote.run(["sleep", "97"])
        assert time.monotonic() - started < PATIENCE_S
        killer.join()  # the session may end before the server that listens: a new one could not bind
        node.start_sshd()
        assert remote.run(["echo", "again"]).stdout == b"again\n"
    finally:
        node.exec(["pkill", "-x", "sleep"])


def test_closing_the_remote_ends_a_reader_in_another_thread(remote: SshRemote) -> None:
    stream = remote.stream(["cat"])
    threading.Timer(0.2, remote.close).start()
    with pytest.raises(EOFError, match="closed by the launcher"):
        while True:
            stream.read_line(PATIENCE_S)


def test_close_does_not_wait_for_a_connection_being_opened(hosts: NetnsHosts) -> None:
    node = hosts["node3"]
    server = [p.pid for p in node.sshd_processes()]
    for pid in server:
        os.kill(pid, signal.SIGSTOP)
    remote = SshRemote(target_of(node))
    caught: list[BaseException] = []

    def connect() -> None:
        try:
            remote.run(["true"])
        except ConnectionLost as error:
            caught.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    time.sleep(0.3)
    started = time.monotonic()
    remote.close()
    assert time.monotonic() - started < PATIENCE_S / 2  # a connection has PATIENCE_S to be opened
    for pid in server:
        os.kill(pid, signal.SIGCONT)
    thread.join()
    assert "closed by the launcher while connecting" in str(caught[0])
    assert remote.run(["echo", "anew"]).stdout == b"anew\n"
    remote.close()


def test_threads_that_wait_for_one_connection_share_its_failure() -> None:
    """A silent node costs its time-out once, not once a question."""
    caught: list[BaseException] = []
    waits = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = SshTarget(node="n", host="127.0.0.1", port=server.getsockname()[1], connect_timeout_s=30.0)
        with remote_to(target) as silent:

            def ask() -> None:
                waits.set()
                with pytest.raises(NodeUnreachable) as failure:
                    silent.run(["true"])
                caught.append(failure.value)

            first = threading.Thread(target=ask)
            first.start()
            connection, _ = server.accept()
            waits.clear()
            second = threading.Thread(target=ask)
            second.start()
            waits.wait()
            time.sleep(0.5)  # it has only to come to the lock
            connection.close()
            first.join()
            second.join()
            server.setblocking(False)
            with pytest.raises(BlockingIOError):
                server.accept()
    assert len(caught) == 2 and caught[0] is caught[1]


# Host keys


def test_unknown_host_key_is_refused_then_accepted(
    hosts: NetnsHosts, node: NetnsNode, tmp_path: Path
) -> None:
    known_hosts = tmp_path / "new" / "known_hosts"
    target = replace(target_of(node), known_hosts_files=(known_hosts,))
    listing = subprocess.run(
        ["ssh-keygen", "-lf", str(node.host_public_key)], capture_output=True, text=True, check=True
    )
    with remote_to(target) as remote, pytest.raises(HostKeyUnknown) as caught:
        remote.run(["true"])
    assert listing.stdout.split()[1] in caught.value.message
    assert "--accept-new-host-keys" in caught.value.hint
    assert not known_hosts.exists()
    with remote_to(replace(target, accept_new_host_key=True)) as remote:
        assert remote.run(["true"]).exit_status == 0
    with remote_to(target) as remote:
        assert remote.run(["true"]).exit_status == 0
    by_ssh = ["ssh", "-F", str(hosts.ssh_config), "-o", f"UserKnownHostsFile={known_hosts}"]
    by_ssh += ["-o", "BatchMode=yes", node.name, "true"]
    assert subprocess.run(by_ssh, check=False).returncode == 0


def test_changed_host_key_is_refused_even_with_accept(hosts: NetnsHosts, node: NetnsNode) -> None:
    node.new_host_key()
    with remote_to(replace(target_of(node), accept_new_host_key=True)) as remote:
        with pytest.raises(
            HostKeyChanged, match=r"must be ssh-ed25519 SHA256:\S+ as at \S+known_hosts:1"
        ) as caught:
            remote.run(["true"])
        assert f"ssh-keygen -f {hosts.known_hosts} -R '{node.address}'" in caught.value.hint
        hosts.trust_hosts()
        assert remote.run(["true"]).exit_status == 0


def test_key_of_another_type_is_a_changed_key(hosts: NetnsHosts, node: NetnsNode) -> None:
    node.new_host_key("ecdsa")
    with (
        remote_to(replace(target_of(node), accept_new_host_key=True)) as remote,
        pytest.raises(HostKeyChanged, match="got ecdsa-sha2-nistp256"),
    ):
        remote.run(["true"])
    node.new_host_key("ed25519")


def test_server_with_several_keys_shows_the_known_one(hosts: NetnsHosts, node: NetnsNode) -> None:
    rsa = make_key(node.folder / "host_key_rsa", kind="rsa")
    config = node.folder / "sshd_config"
    before = config.read_text()
    config.write_text(before + f"HostKey {rsa}\n")
    node.stop_sshd()
    node.start_sshd()
    try:
        kind, blob = rsa.with_suffix(".pub").read_text().split()[:2]
        hosts.known_hosts.write_text(f"{node.address} {kind} {blob}\n")
        subprocess.run(["ssh-keygen", "-q", "-H", "-f", hosts.known_hosts], check=True, capture_output=True)
        assert node.address not in hosts.known_hosts.read_text()  # hashed
        with remote_to(target_of(node)) as remote:
            assert remote.run(["true"]).exit_status == 0
    finally:
        config.write_text(before)
        node.stop_sshd()
        node.start_sshd()


# Authentication


def test_wrong_key_is_named(node: NetnsNode, tmp_path: Path) -> None:
    key = make_key(tmp_path / "stranger")
    with (
        remote_to(replace(target_of(node), identity_file=key)) as remote,
        pytest.raises(
            AuthenticationRefused, match=f"login as root must be accepted, got refusal of {key}"
        ) as caught,
    ):
        remote.run(["true"])
    assert f"ssh-copy-id -p 22 root@{node.address}" in caught.value.hint


def test_unknown_user_is_named(node: NetnsNode) -> None:
    with (
        remote_to(replace(target_of(node), user="nobody-here")) as remote,
        pytest.raises(AuthenticationRefused, match="login as nobody-here"),
    ):
        remote.run(["true"])


def test_missing_key_file_is_named(node: NetnsNode) -> None:
    with (
        remote_to(replace(target_of(node), identity_file=Path("/no/such/key"))) as remote,
        pytest.raises(AuthenticationRefused, match="no key to try; unusable: /no/such/key: no such file"),
    ):
        remote.run(["true"])


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A running ssh-agent that holds nothing yet."""
    path = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL)
    while not path.exists():
        time.sleep(0.01)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
    yield path
    process.kill()
    process.wait()


@pytest.mark.parametrize("kind", ["ed25519", "rsa", "ecdsa"])
def test_encrypted_key_needs_the_agent(
    hosts: NetnsHosts, node: NetnsNode, agent: Path, tmp_path: Path, kind: str
) -> None:
    key = make_key(tmp_path / "locked", kind=kind, passphrase="secret")
    accepted = node.folder / "authorized_keys"
    before = accepted.read_text()
    accepted.write_text(before + key.with_suffix(".pub").read_text())
    try:
        with remote_to(replace(target_of(node), identity_file=key)) as remote:
            with pytest.raises(
                AuthenticationRefused, match="locked: encrypted, and the agent does not hold it"
            ) as c:
                remote.run(["true"])
            assert c.value.hint.endswith(f"ssh-add {key}")
            subprocess.run(
                ["ssh-keygen", "-q", "-p", "-P", "secret", "-N", "", "-f", key], check=True, stdout=-3
            )
            subprocess.run(["ssh-add", "-q", str(key)], check=True)
            subprocess.run(
                ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True, stdout=-3
            )
            assert remote.run(["true"]).exit_status == 0
    finally:
        accepted.write_text(before)


def test_agent_alone_is_enough(hosts: NetnsHosts, node: NetnsNode, agent: Path, tmp_path: Path) -> None:
    subprocess.run(["ssh-add", "-q", str(hosts.client_key)], check=True)
    empty = tmp_path / "config"
    empty.write_text("")
    target = replace(target_of(node), host=node.address, user="root", config_file=empty)
    hidden = hosts.client_key.rename(hosts.client_key.with_name("elsewhere"))
    try:
        with remote_to(target) as remote:
            assert remote.run(["true"]).exit_status == 0
    finally:
        hidden.rename(hosts.client_key)


def test_too_many_agent_keys_still_reach_the_configured_one(
    hosts: NetnsHosts, node: NetnsNode, agent: Path, tmp_path: Path
) -> None:
    for number in range(8):
        subprocess.run(["ssh-add", "-q", str(make_key(tmp_path / f"other{number}"))], check=True)
    with remote_to(target_of(node)) as remote:
        assert remote.run(["true"]).exit_status == 0
    empty = tmp_path / "config"
    empty.write_text("")
    target = replace(target_of(node), host=node.address, user="root", config_file=empty)
    with (
        remote_to(target) as remote,
        pytest.raises(AuthenticationRefused, match=r"agent key other0.* and then hung up"),
    ):
        remote.run(["true"])


def test_dead_agent_is_mentioned(node: NetnsNode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "gone"))
    with (
        remote_to(replace(target_of(node), identity_file=make_key(tmp_path / "stranger"))) as remote,
        pytest.raises(AuthenticationRefused, match=r"agent at .*gone: No such file or directory"),
    ):
        remote.run(["true"])


# Nodes that cannot be reached


def test_closed_port(node: NetnsNode) -> None:
    with (
        remote_to(replace(target_of(node), port=2200)) as remote,
        pytest.raises(NodeUnreachable, match=r"got connection refused \(10\.77\.\d+\.1:2200\)") as caught,
    ):
        remote.run(["true"])
    assert "ssh -p 2200" in caught.value.hint


def test_name_that_does_not_resolve(node: NetnsNode) -> None:
    with (
        remote_to(replace(target_of(node), host="spark9.invalid")) as remote,
        pytest.raises(
            NodeUnreachable, match=r"must have a name that resolves, got .* \(spark9\.invalid:22\)"
        ) as c,
    ):
        remote.run(["true"])
    assert "IP address" in c.value.hint


@pytest.mark.parametrize(
    ("greeting", "hangs_up", "got"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", True, "'HTTP/1.1 400 Bad Request'"),
        (b"220 mail ready\r\n", False, "'220 mail ready'"),
        (b"", True, "a closed connection"),
        (b"", False, "no answer"),
        (b"SSH-1.5-old\r\n", True, "Incompatible version"),
    ],
)
def test_port_of_something_else(tmp_path: Path, greeting: bytes, hangs_up: bool, got: str) -> None:
    limit_s = PATIENCE_S if hangs_up else 2.0
    with socket.create_server(("127.0.0.1", 0)) as server:
        held = []

        def answer() -> None:
            connection, _ = server.accept()
            connection.sendall(greeting)
            if hangs_up:
                connection.recv(100)  # so that closing does not reset what was sent
                connection.close()
            else:
                held.append(connection)

        thread = threading.Thread(target=answer)
        thread.start()
        target = SshTarget(
            node="n", host="127.0.0.1", port=server.getsockname()[1], connect_timeout_s=limit_s
        )
        with remote_to(target) as remote, pytest.raises(NodeUnreachable) as caught:
            remote.run(["true"])
        thread.join()
        for connection in held:
            connection.close()
    assert got in caught.value.message
    assert "ssh -p" in caught.value.hint


def test_three_nodes_one_error_each_grouped(hosts: NetnsHosts) -> None:
    targets = [replace(target_of(n), port=2299) for n in hosts.nodes[:2]] + [target_of(hosts.nodes[2])]
    results = run_on_all([SshRemote(t) for t in targets], lambda r: r.run(["true"]))
    assert list(results) == ["node1", "node2", "node3"]
    assert results["node3"].unwrap().exit_status == 0
    (group,) = group_by_reason(errors_of(results))
    assert group.nodes == ("node1", "node2")
    assert str(group).startswith(
        "node1, node2: SSH server must accept connections, got connection refused (10.77."
    )


# Jump hosts


@pytest.mark.parametrize(
    ("jump", "last_hop"), [("node1", "node1"), ("node1,node2", "node2"), ("ann@node2:2222", "node2")]
)
def test_jump(hosts: NetnsHosts, jump: str, last_hop: str) -> None:
    target = replace(target_of(hosts["node3"]), proxy_jump=jump)
    with remote_to(target) as remote:
        seen = remote.run(["sh", "-c", "echo $SSH_CONNECTION; id -un"]).stdout.decode().split()
        assert (seen[0], seen[-1]) == (hosts[last_hop].address, "bob")
        data = os.urandom(1 << 20)
        assert remote.run(["cat"], stdin=data).stdout == data


def test_jump_chain_from_configuration(hosts: NetnsHosts) -> None:
    before = hosts.ssh_config.read_text()
    first = "Host node3\n  ProxyJump node2\nHost node2\n  ProxyJump node1\n"
    hosts.ssh_config.write_text(first + before)
    try:
        with remote_to(target_of(hosts["node3"])) as remote:
            assert (
                remote.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[0].decode()
                == hosts["node2"].address
            )
        with remote_to(replace(target_of(hosts["node3"]), proxy_jump="none")) as remote:
            assert (
                remote.run(["sh", "-c", "echo $SSH_CONNECTION"]).stdout.split()[0].decode() == hosts.gateway
            )
        hosts.ssh_config.write_text("Host node1\n  ProxyJump node2\nHost node2\n  ProxyJump node1\n" + before)
        with remote_to(target_of(hosts["node1"])) as remote, pytest.raises(ConfigError, match="got a loop"):
            remote.run(["true"])
    finally:
        hosts.ssh_config.write_text(before)


def test_link_through_a_jump_host_notices_the_far_cable(hosts: NetnsHosts) -> None:
    far = hosts["node3"]
    with remote_to(replace(wary_of(far), proxy_jump="node1")) as remote:
        stream = remote.stream(["cat"], stdin=b"up\n")
        assert stream.read_line(PATIENCE_S) == b"up"
        far.unplug()
        try:
            with pytest.raises(ConnectionLost, match=r"got no answer .*\.3:22 via 10\.77\.\d+\.1:22"):
                while True:
                    stream.read_line(1)
        finally:
            far.plug()


def test_closed_port_behind_a_jump_host(hosts: NetnsHosts) -> None:
    with (
        remote_to(replace(target_of(hosts["node3"]), port=2200, proxy_jump="node1")) as remote,
        pytest.raises(NodeUnreachable, match=r"from its jump host, got .*\.3:2200 via .*\.1:22") as caught,
    ):
        remote.run(["true"])
    assert "-J root@10.77." in caught.value.hint


def test_refused_jump_host_is_the_one_named(hosts: NetnsHosts) -> None:
    target = replace(target_of(hosts["node3"]), proxy_jump="stranger@node1")
    with (
        remote_to(target) as remote,
        pytest.raises(AuthenticationRefused, match=r"login as stranger .* \(10\.77\.\d+\.1:22\)"),
    ):
        remote.run(["true"])


def test_nothing_is_left_on_the_nodes(hosts: NetnsHosts) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(n.processes() for n in hosts.nodes) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {n.name: n.processes() for n in hosts.nodes} == {n.name: [] for n in hosts.nodes}
