"""What must not leave with a published result, and what stands in its place.

Found by form: addresses, MAC addresses, homes, keys, ids of devices. Found by name: this machine, its user,
and the nodes, hosts and users of the topology file. The same value gets the same stand-in everywhere.
"""

from __future__ import annotations

import getpass
import ipaddress
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from launcher.choose_inputs import default_topology_path
from launcher.errors import ConfigError
from launcher.read_topology import read_topology
from launcher.redact import mask_text
from launcher.results.manifest import ScrubbedValue
from launcher.topology import Topology

# Shorter names are found inside ordinary words.
MIN_NAME_CHARS = 3
# These say nothing about anybody, and paths and engines are full of them.
_COMMON_NAMES = frozenset(
    ("root", "user", "localhost", "local", "node", "spark", "nvidia", "ubuntu", "admin")
)
# Of an absolute path, bare or as a file: address.
_PATH_BEGINS = r"(?:(?<![\w/.-])|(?<=file://))"
_FORMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)")),
    ("key", re.compile(r"\b(?:ssh-(?:rsa|ed25519)|ecdsa-sha2-\S+) AAAA[A-Za-z0-9+/=]+")),
    ("key", re.compile(r"\b(?:sk|ghp|gho|xox[bp]|glpat|AKIA)[-_]?[A-Za-z0-9_-]{16,}")),
    ("device", re.compile(r"\bGPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    ("mail", re.compile(r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b")),
    ("home", re.compile(rf"{_PATH_BEGINS}(?:/(?:home|Users)/[^/\s\"':,;)\]}}]+|/root(?![\w.-]))")),
    ("mac", re.compile(r"(?<![0-9A-Fa-f:.-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![0-9A-Fa-f:-])")),
    ("address", re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\d)")),
    ("address", re.compile(r"(?<![\w:.])[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])")),
)
_STAND_IN = {"key": "***", "home": "~"}


class Scrubber:
    """Replaces private values in texts, and remembers how many of which kind."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        """`names`: more words that are private, such as a host name that only the user knows."""
        self._names = re.compile(
            "|".join(
                rf"(?<![A-Za-z0-9]){re.escape(name)}(?![A-Za-z0-9])"
                for name in sorted(set(names), key=lambda name: (-len(name), name))
            )
            or r"(?!)",
            re.IGNORECASE,
        )
        self._stand_ins: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        self._kinds: dict[str, str] = {}
        self.examples: dict[str, str] = {}

    def scrub(self, text: str) -> str:
        masked = mask_text(text, ())
        if masked != text:
            self._count("key", "***", "(a key)")
        for kind, pattern in _FORMS:
            masked = pattern.sub(lambda match, kind=kind: self._replace(kind, match[0]), masked)  # type: ignore[misc]
        return self._names.sub(lambda match: self._replace("name", match[0]), masked)

    def scrub_value(self, value: Any) -> Any:
        """Every text in JSON data, keys too."""
        if isinstance(value, str):
            return self.scrub(value)
        if isinstance(value, dict):
            return {self.scrub(key): self.scrub_value(inner) for key, inner in value.items()}
        if isinstance(value, list):
            return [self.scrub_value(inner) for inner in value]
        return value

    @property
    def found(self) -> tuple[ScrubbedValue, ...]:
        """Sorted; never the values themselves."""
        return tuple(
            ScrubbedValue(kind=self._kinds[name], replaced_by=name, count=count)
            for name, count in sorted(self._counts.items())
        )

    def _replace(self, kind: str, value: str) -> str:
        if kind == "address" and not _is_private_address(value):
            return value
        stand_in = _STAND_IN.get(kind)
        if stand_in is None:
            own = self._stand_ins
            number = sum(1 for other, _ in own if other == kind)
            stand_in = own.setdefault((kind, value.lower()), f"{kind}-{number}")
        self._count(kind, stand_in, value if kind != "key" else "(a key)")
        return stand_in

    def _count(self, kind: str, stand_in: str, value: str) -> None:
        self._counts[stand_in] = self._counts.get(stand_in, 0) + 1
        self._kinds[stand_in] = kind
        self.examples.setdefault(stand_in, value)


def _is_private_address(text: str) -> bool:
    """True for an address that names a machine: not loopback, not "any", and no clock time or ratio."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    return not (address.is_loopback or address.is_unspecified)


def own_names() -> tuple[str, ...]:
    """This machine, its user, and what the topology file names. A file that cannot be read is an error."""
    names = {socket.gethostname(), socket.gethostname().split(".")[0], getpass.getuser(), Path.home().name}
    path = default_topology_path()
    if path.is_file():
        try:
            names |= _topology_names(read_topology(path)[0])
        except ConfigError as error:
            raise ConfigError(
                f"the topology file must be readable to know what is private: {error.message}",
                hint=f"correct {path}, or move it away",
            ) from error
    return tuple(
        sorted(name for name in names if len(name) >= MIN_NAME_CHARS and name.lower() not in _COMMON_NAMES)
    )


def _topology_names(topology: Topology) -> set[str]:
    names = {topology.name}
    for node in topology.nodes:
        names |= {node.name, node.fabric.address}
        names |= {value for value in (node.ssh.host, node.ssh.user, node.ssh.proxy_jump) if value}
    return names
