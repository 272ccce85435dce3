"""Judge the key of the server at the other end of a transport against known_hosts."""

from __future__ import annotations

from launcher.errors import HostKeyChanged, HostKeyUnknown, NodeUnreachable
from launcher.ssh_host_keys import HostKey, KnownKey, append_host_key, judge_host_key, known_key_types
from launcher.ssh_paramiko import paramiko
from launcher.ssh_target import SshEndpoint

# Signature algorithms that prove a key of a known_hosts type; other types name themselves.
ALGORITHMS_OF = {"ssh-rsa": ("rsa-sha2-512", "rsa-sha2-256", "ssh-rsa")}


def prefer_known_types(transport: paramiko.Transport, known: list[KnownKey]) -> None:
    """Ask the server first for a key that can be verified; it has several. Call before the handshake."""
    options = transport.get_security_options()
    wanted = [a for kind in known_key_types(known) for a in ALGORITHMS_OF.get(kind, (kind,))]
    offered = [a for a in wanted if a in options.key_types]
    options.key_types = (*offered, *(a for a in options.key_types if a not in offered))


def verify_host_key(transport: paramiko.Transport, end: SshEndpoint, known: list[KnownKey]) -> None:
    """Refuse the server unless its key is known. Raises HostKeyUnknown or HostKeyChanged."""
    server_key = transport.get_remote_server_key()
    offered = HostKey(key_type=server_key.get_name(), blob=server_key.asbytes())
    verdict = judge_host_key(offered, known)
    if verdict == "known":
        return
    if verdict == "unknown" and end.accept_new_host_key:
        append_host_key(end.writable_known_hosts, end.host_key_name, offered)
        return
    raise _host_key_error(verdict, offered, end, known)


def _host_key_error(
    verdict: str, offered: HostKey, end: SshEndpoint, known: list[KnownKey]
) -> NodeUnreachable:
    got = f"{offered.key_type} {offered.fingerprint}"
    if verdict == "unknown":
        return HostKeyUnknown(
            f"SSH host key must be in {end.writable_known_hosts}, got an unknown one: {got} ({end.where}).",
            hint="compare with `ssh-keygen -lf` of /etc/ssh/ssh_host_*_key.pub on the node, "
            "then repeat with --accept-new-host-keys",
            node=end.node,
        )
    if verdict == "revoked":
        return HostKeyChanged(
            f"SSH host key must not be revoked, got {got} ({end.where}).",
            hint=f"give the node a new host key; @revoked stands at {known[0].where}",
            node=end.node,
        )
    old = next(k for k in known if not k.revoked)
    return HostKeyChanged(
        f"SSH host key must be {old.key.key_type} {old.key.fingerprint} as at {old.where}, got {got}"
        f" ({end.where}).",
        hint="if the node was reinstalled, and only then: "
        f"ssh-keygen -f {old.file} -R '{end.host_key_name}' and repeat with --accept-new-host-keys",
        node=end.node,
    )
