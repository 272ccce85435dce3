"""Prove who we are to an SSH server: keys from files and from the agent, in a fixed order."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from launcher.errors import AuthenticationRefused
from launcher.ssh_errors import explain_ssh_error
from launcher.ssh_paramiko import paramiko
from launcher.ssh_target import SshEndpoint

# The agent may ask its owner to confirm or to touch a token.
AGENT_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    label: str
    key: paramiko.PKey


@dataclass(slots=True)
class _Attempt:
    """What was tried and what could not be, for the message when all of it fails."""

    tried: list[str] = field(default_factory=list)
    unusable: list[str] = field(default_factory=list)
    locked: list[Path] = field(default_factory=list)


class _Agent(paramiko.agent.AgentSSH):
    """paramiko's agent client on a given socket (its own knows SSH_AUTH_SOCK only)."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(AGENT_TIMEOUT_S)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def log_in(transport: paramiko.Transport, end: SshEndpoint) -> None:
    """Try each identity until one is accepted. Raises AuthenticationRefused naming all that were tried.

    Order: configured key files (through the agent where it holds them), other agent keys unless
    IdentitiesOnly, then ~/.ssh/id_*. Servers allow about six tries, so the likely ones come first.
    """
    attempt = _Attempt()
    agent = _open_agent(end, attempt)
    try:
        for identity in _identities(end, agent, attempt):
            if _accepted(transport, end, identity, attempt):
                return
    finally:
        if agent is not None:
            agent.close()
    raise _all_refused(end, attempt)


def _accepted(
    transport: paramiko.Transport, end: SshEndpoint, identity: _Identity, attempt: _Attempt
) -> bool:
    attempt.tried.append(identity.label)
    try:
        further = transport.auth_publickey(end.user, identity.key)
    except paramiko.BadAuthenticationType as error:
        raise explain_ssh_error(error, end) from error
    except paramiko.AuthenticationException as error:
        if not transport.is_active():  # the server hung up: too many tries, or the account is barred
            raise _all_refused(end, attempt, "and then hung up") from error
        return False
    except (paramiko.SSHException, OSError) as error:
        if not transport.is_active():
            raise explain_ssh_error(error, end) from error
        attempt.unusable.append(f"{identity.label}: {error}")  # the agent refused to sign
        return False
    if further:
        raise AuthenticationRefused(
            f"SSH login as {end.user} must be accepted with a key alone, got a server that also wants"
            f" {', '.join(further)} ({end.where}).",
            hint="set AuthenticationMethods publickey for this user in the node's /etc/ssh/sshd_config",
            node=end.node,
        )
    return True


def _identities(end: SshEndpoint, agent: _Agent | None, attempt: _Attempt) -> Iterator[_Identity]:
    held = {key.blob: key for key in agent.get_keys()} if agent is not None else {}
    files = end.identity_files or (end.default_key_files if end.only_identity_files else ())
    offered: set[bytes] = set()
    for file in files:
        yield from _from_file(file, held, offered, attempt, must_exist=bool(end.identity_files))
    if not end.only_identity_files:
        for blob, key in held.items():
            if blob not in offered:
                offered.add(blob)
                yield _Identity(label=f"agent key {key.comment or key.get_name()}", key=key)
    if not files:
        for file in end.default_key_files:
            yield from _from_file(file, held, offered, attempt, must_exist=False)


def _from_file(
    file: Path,
    held: dict[bytes, paramiko.AgentKey],
    offered: set[bytes],
    attempt: _Attempt,
    *,
    must_exist: bool,
) -> Iterator[_Identity]:
    """The file's key, signed for by the agent where it holds it. Yields at most one."""
    blob = _public_blob(file)
    if blob is not None and blob in offered:
        return
    if blob is not None and blob in held:
        offered.add(blob)
        yield _Identity(label=f"{file} (in the agent)", key=held[blob])
        return
    if not file.is_file():
        if must_exist:
            attempt.unusable.append(f"{file}: no such file")
        return
    key = _load(file, attempt)
    if key is not None and key.asbytes() not in offered:
        offered.add(key.asbytes())
        yield _Identity(label=str(file), key=key)


def _load(file: Path, attempt: _Attempt) -> paramiko.PKey | None:
    try:
        return paramiko.PKey.from_path(file)
    except (TypeError, paramiko.PasswordRequiredException):
        # cryptography says TypeError for a key that needs a passphrase
        attempt.locked.append(file)
        attempt.unusable.append(f"{file}: encrypted, and the agent does not hold it")
    except OSError as error:
        attempt.unusable.append(f"{file}: {error.strerror}")
    except (paramiko.pkey.UnknownKeyType, ValueError, paramiko.SSHException) as error:
        attempt.unusable.append(f"{file}: no usable private key ({type(error).__name__})")
    return None


def _public_blob(file: Path) -> bytes | None:
    """Binary public key from FILE.pub, or from FILE itself when it is a .pub file."""
    public = file if file.suffix == ".pub" else file.with_name(file.name + ".pub")
    try:
        return base64.b64decode(public.read_text(encoding="ascii", errors="replace").split()[1])
    except (OSError, IndexError, ValueError):
        return None  # no or no valid .pub file: the private key itself is loaded instead


def _open_agent(end: SshEndpoint, attempt: _Attempt) -> _Agent | None:
    if not end.agent_socket:
        return None
    try:
        return _Agent(end.agent_socket)
    except OSError as error:
        attempt.unusable.append(f"agent at {end.agent_socket}: {error.strerror or error}")
    except paramiko.SSHException as error:
        attempt.unusable.append(f"agent at {end.agent_socket}: {error}")
    return None


def _all_refused(end: SshEndpoint, attempt: _Attempt, then: str = "") -> AuthenticationRefused:
    got = f"refusal of {', '.join(attempt.tried)}" if attempt.tried else "no key to try"
    if then:
        got = f"{got} {then}"
    if attempt.unusable:
        got = f"{got}; unusable: {'; '.join(attempt.unusable)}"
    return AuthenticationRefused(
        f"SSH login as {end.user} must be accepted, got {got} ({end.where}).",
        hint=_login_hint(end, attempt),
        node=end.node,
    )


def _login_hint(end: SshEndpoint, attempt: _Attempt) -> str:
    if attempt.locked:
        return f"unlock the key for this session: ssh-add {attempt.locked[0]}"
    copy = f"ssh-copy-id -p {end.port} {end.user}@{end.host}"
    if not attempt.tried:
        return f"make a key and install it on the node: ssh-keygen -t ed25519 && {copy}"
    return f"install a key on the node ({copy}), or correct user and identity_file of this node"
