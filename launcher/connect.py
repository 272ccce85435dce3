"""Open a connection to each node of a topology:
paramiko for ssh nodes (imported only then), subprocess for local.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from launcher.local_remote import LocalRemote
from launcher.remote import Remote
from launcher.topology import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions:
    """What the command line says about ssh; everything else is in the topology or ~/.ssh/config."""

    accept_new_host_keys: bool = False
    connect_timeout_s: float = 10.0
    keepalive_s: float = 1.0


def connect(node: Node, options: SshOptions) -> Remote:
    """Opens nothing yet: the first request does."""
    if node.connection == "local":
        return LocalRemote(node.name)
    from launcher.ssh_remote import SshRemote
    from launcher.ssh_target import SshTarget

    ssh = node.ssh
    return SshRemote(
        SshTarget(
            node=node.name,
            host=ssh.host or node.name,
            port=ssh.port,
            user=ssh.user,
            identity_file=Path(ssh.identity_file) if ssh.identity_file else None,
            proxy_jump=ssh.proxy_jump,
            known_hosts_files=(Path(ssh.known_hosts_file),) if ssh.known_hosts_file else (),
            accept_new_host_key=options.accept_new_host_keys,
            connect_timeout_s=options.connect_timeout_s,
            keepalive_s=options.keepalive_s,
        )
    )


@contextmanager
def connect_all(nodes: Iterable[Node], options: SshOptions) -> Iterator[dict[str, Remote]]:
    with ExitStack() as stack:
        remotes = {}
        for node in nodes:
            remote = connect(node, options)
            stack.callback(remote.close)
            remotes[node.name] = remote
        yield remotes
