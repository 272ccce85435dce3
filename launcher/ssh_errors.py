"""paramiko's and the system's exceptions, each turned into one error with cause and next command."""

from __future__ import annotations

import socket
from collections.abc import Callable

from launcher.errors import AuthenticationRefused, NodeUnreachable
from launcher.ssh_paramiko import paramiko
from launcher.ssh_target import SshEndpoint

Explain = Callable[[BaseException, SshEndpoint], NodeUnreachable]


def explain_ssh_error(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    """The error of the nearest mapped class. Call it for errors while connecting or opening a channel."""
    for kind in type(error).__mro__:
        if kind in EXCEPTION_MAP:
            return EXCEPTION_MAP[kind](error, end)
    raise error  # not an SSH failure but a bug of ours


def unreachable(end: SshEndpoint, must: str, got: str, *, hint: str = "") -> NodeUnreachable:
    hint = hint or f"try it by hand: {end.ssh_command('true')}"
    return NodeUnreachable(f"SSH server must {must}, got {got} ({end.where}).", hint=hint, node=end.node)


def _refused(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    hint = f"start it on the node (sudo systemctl start ssh) or set its port; then: {end.ssh_command('true')}"
    return unreachable(end, "accept connections", "connection refused", hint=hint)


def _timeout(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    hint = f"check power, cable and address of the node; then: {end.ssh_command('true')}"
    return unreachable(end, f"answer within {end.connect_timeout_s:g} s", "no answer", hint=hint)


def _unresolved(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    reason = error.strerror if isinstance(error, OSError) else error
    hint = f"set the node's ssh host to its IP address, or try: getent hosts {end.host}"
    return unreachable(end, "have a name that resolves", str(reason), hint=hint)


def _os_error(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return unreachable(end, "be reachable", reason or type(error).__name__)


def _several(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    """One failure per address of the name; they seldom differ, so the first one speaks."""
    causes = list(getattr(error, "errors", {}).values())
    return explain_ssh_error(causes[0], end) if causes else _os_error(error, end)


def _closed(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    hint = f"look at the server's log on the node (journalctl -u ssh -n 20); then: {end.ssh_command('true')}"
    return unreachable(end, "complete the handshake", "a closed connection", hint=hint)


def _protocol(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    text = str(error).strip() or type(error).__name__
    if "banner" in text or "protocol version" in text:
        hint = f"is {end.port} the port of sshd? try: {end.ssh_command('true')}"
        return unreachable(end, "greet with its SSH version", f"no such greeting: {text}", hint=hint)
    if "imeout" in text:
        return _timeout(error, end)
    return unreachable(end, "complete the handshake", text)


def _no_common_algorithm(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    return unreachable(end, "offer an algorithm that paramiko knows", str(error))


def _login(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    return AuthenticationRefused(
        f"SSH login as {end.user} must be accepted, got {str(error).rstrip('.')} ({end.where}).",
        hint=f"try it by hand: {end.ssh_command('true')}",
        node=end.node,
    )


def _login_types(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    allowed = ", ".join(getattr(error, "allowed_types", [])) or "nothing"
    return AuthenticationRefused(
        f"SSH login as {end.user} must be accepted with a key alone, got a server that wants {allowed}"
        f" ({end.where}).",
        hint="allow PubkeyAuthentication in the node's /etc/ssh/sshd_config",
        node=end.node,
    )


def _locked_key(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    return AuthenticationRefused(
        f"SSH key must be usable without a passphrase or in the agent, got an encrypted one ({end.where}).",
        hint="ssh-add PATH-OF-THE-KEY",
        node=end.node,
    )


def _channel(error: BaseException, end: SshEndpoint) -> NodeUnreachable:
    reason = getattr(error, "text", "") or str(error)
    hint = "raise MaxSessions in the node's /etc/ssh/sshd_config, or allow AllowTcpForwarding on a jump host"
    return unreachable(end, "open a channel", reason, hint=hint)


# Every exception class that paramiko defines is here or in NEVER_SEEN; a test compares with the package.
EXCEPTION_MAP: dict[type[BaseException], Explain] = {
    ConnectionRefusedError: _refused,
    TimeoutError: _timeout,
    socket.gaierror: _unresolved,
    OSError: _os_error,
    EOFError: _closed,
    UnicodeError: _unresolved,  # a host name that IDNA cannot encode
    paramiko.ssh_exception.NoValidConnectionsError: _several,
    paramiko.SSHException: _protocol,
    paramiko.ssh_exception.MessageOrderError: _protocol,
    paramiko.ssh_exception.IncompatiblePeer: _no_common_algorithm,
    paramiko.AuthenticationException: _login,
    paramiko.ssh_exception.UnableToAuthenticate: _login,
    paramiko.auth_strategy.AuthFailure: _login,
    paramiko.BadAuthenticationType: _login_types,
    paramiko.ssh_exception.PartialAuthentication: _login_types,
    paramiko.PasswordRequiredException: _locked_key,
    paramiko.ChannelException: _channel,
    paramiko.pkey.UnknownKeyType: _no_common_algorithm,
}

# Class name -> why the launcher cannot meet it.
NEVER_SEEN = {
    "BERException": "key files are read by cryptography, not by paramiko's own decoder",
    "BadHostKeyException": "host keys are judged in ssh_host_keys.py, not by paramiko's client",
    "InvalidHostKey": "known_hosts is read in ssh_host_keys.py",
    "ConfigParseError": "the configuration is read in ssh_config.py",
    "CouldNotCanonicalize": "the configuration is read in ssh_config.py",
    "ProxyCommandFailure": "ProxyCommand is refused in ssh_target.py",
    "NeedRekeyException": "caught in paramiko's transport thread",
    "PipeTimeout": "becomes TimeoutError in Channel.recv",
    "SFTPError": "no SFTP is used",
    "WindowsError": "Windows only",
}
