"""Where and as whom to log in: what the topology says, completed from the SSH configuration."""

from __future__ import annotations

import getpass
import os
import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.errors import ConfigError
from launcher.ssh_config import SshHostSettings, read_ssh_settings

MAX_JUMPS = 8
SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
DEFAULT_KEY_NAMES = ("id_ed25519", "id_ecdsa", "id_rsa")


@dataclass(frozen=True, slots=True, kw_only=True)
class SshTarget:
    """What a topology says about the connection to `node`. None or empty: as the SSH configuration says.

    `host` may be an alias of that configuration; `proxy_jump` is "[user@]host[:port]", a comma-separated
    chain of them, or "none". A dead link is noticed about 5 * `keepalive_s` after the last byte.
    """

    node: str
    host: str
    port: int | None = None
    user: str | None = None
    identity_file: Path | None = None
    proxy_jump: str | None = None
    known_hosts_files: tuple[Path, ...] = ()
    accept_new_host_key: bool = False
    connect_timeout_s: float = 10.0
    keepalive_s: float = 1.0
    config_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SshEndpoint:
    """One SSH server to log in to, nothing left open. `via` is the jump host before it."""

    node: str
    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    default_key_files: tuple[Path, ...]
    agent_socket: str
    only_identity_files: bool
    host_key_name: str
    known_hosts_files: tuple[Path, ...]
    accept_new_host_key: bool
    connect_timeout_s: float
    keepalive_s: float
    via: SshEndpoint | None

    @property
    def where(self) -> str:
        address = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        return f"{address} via {self.via.where}" if self.via else address

    @property
    def writable_known_hosts(self) -> Path:
        return self.known_hosts_files[0]

    def ssh_command(self, *remote: str) -> str:
        """The same login by hand, to paste into a terminal."""
        words = ["ssh", "-p", str(self.port)]
        if self.identity_files:
            words += ["-i", str(self.identity_files[0])]
        if self.via is not None:
            words += ["-J", ",".join(reversed([f"{hop.user}@{hop.host}:{hop.port}" for hop in self._hops()]))]
        return shlex.join([*words, f"{self.user}@{self.host}", *remote])

    def _hops(self) -> list[SshEndpoint]:
        return [self.via, *self.via._hops()] if self.via is not None else []


def resolve_target(target: SshTarget) -> SshEndpoint:
    """Complete `target` from the SSH configuration; reads files, connects to nothing. Raises ConfigError."""
    return _resolve(target, depth=0)


def _resolve(target: SshTarget, *, depth: int) -> SshEndpoint:
    if depth > MAX_JUMPS:
        raise ConfigError(
            f"proxy_jump must lead over at most {MAX_JUMPS} hosts, got a loop ({target.host}).",
            hint="look for a host that is its own ProxyJump in the SSH configuration",
            node=target.node,
        )
    settings = read_ssh_settings(target.host, config_file=target.config_file, user=target.user)
    port = target.port or settings.port or 22
    jump = target.proxy_jump or settings.proxy_jump
    if jump is None and (settings.proxy_command or "none").lower() != "none":
        raise ConfigError(
            "the SSH configuration must use ProxyJump,"
            f" got ProxyCommand {settings.proxy_command} ({target.host}).",
            hint="set proxy_jump for this node in the topology, or ProxyJump in the SSH configuration",
            node=target.node,
        )
    explicit = (target.identity_file.expanduser(),) if target.identity_file else ()
    return SshEndpoint(
        node=target.node,
        host=settings.host_name,
        port=port,
        user=target.user or settings.user or getpass.getuser(),
        identity_files=explicit or settings.identity_files,
        default_key_files=tuple(Path.home() / ".ssh" / name for name in DEFAULT_KEY_NAMES),
        agent_socket=_agent_socket(settings),
        only_identity_files=settings.identities_only or bool(explicit),
        host_key_name=_host_key_name(settings, port),
        known_hosts_files=_known_hosts_files(target, settings),
        accept_new_host_key=target.accept_new_host_key,
        connect_timeout_s=target.connect_timeout_s,
        keepalive_s=target.keepalive_s,
        via=_resolve_jump(target, jump, depth=depth),
    )


def _resolve_jump(target: SshTarget, jump: str | None, *, depth: int) -> SshEndpoint | None:
    """The last host of the chain; the ones before it are its own jump."""
    if jump is None or jump.lower() == "none":
        return None
    before, _, last = jump.rpartition(",")
    parts = re.fullmatch(
        r"(?:ssh://)?(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@/]+)(?::(?P<port>\d+))?/?", last.strip()
    )
    if parts is None:
        raise ConfigError(
            f"proxy_jump must be [user@]host[:port], got {last!r} (node {target.node}).", node=target.node
        )
    hop = replace(
        target,
        host=parts["host"].strip("[]"),
        port=int(parts["port"]) if parts["port"] else None,
        user=parts["user"],
        proxy_jump=before or None,
    )
    return _resolve(hop, depth=depth + 1)


def _agent_socket(settings: SshHostSettings) -> str:
    """Path of the agent's socket; empty for no agent."""
    wanted = settings.identity_agent
    if wanted is None or wanted == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK", "")
    if wanted.lower() == "none":
        return ""
    return os.environ.get(wanted.lstrip("${").rstrip("}"), "") if wanted.startswith("$") else wanted


def _host_key_name(settings: SshHostSettings, port: int) -> str:
    if settings.host_key_alias:
        return settings.host_key_alias.lower()
    host = settings.host_name.lower()
    return host if port == 22 else f"[{host}]:{port}"


def _known_hosts_files(target: SshTarget, settings: SshHostSettings) -> tuple[Path, ...]:
    if target.known_hosts_files:
        return tuple(file.expanduser() for file in target.known_hosts_files)
    dot_ssh = Path.home() / ".ssh"
    mine = settings.user_known_hosts_files or (dot_ssh / "known_hosts", dot_ssh / "known_hosts2")
    system = settings.global_known_hosts_files
    return (*mine, *(SYSTEM_KNOWN_HOSTS if system is None else system))
