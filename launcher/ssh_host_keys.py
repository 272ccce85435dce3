"""Known host keys in OpenSSH's known_hosts format: look up, judge, append. No network, no paramiko.

paramiko's own reader knows neither wildcards nor @revoked and stops at the first matching file.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import fnmatch
import hashlib
import hmac
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Verdict = Literal["known", "unknown", "changed", "revoked"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostKey:
    """A public host key: its type as in known_hosts ("ssh-ed25519") and its binary form."""

    key_type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")
        return f"SHA256:{digest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownKey:
    """A line of known_hosts that names the host asked for."""

    key: HostKey
    file: Path
    line_number: int
    revoked: bool
    bare_host: bool  # recorded for the host on port 22, found when asking for another port

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line_number}"


def find_known_keys(name: str, files: Sequence[Path]) -> list[KnownKey]:
    """Keys recorded for `name` ("host" or "[host]:port"); files that do not exist count as empty.

    As in OpenSSH, a host on another port that has no line of its own may use the line of the bare host.
    """
    found = [known for file in files for known in _read(name, file, bare_host=False)]
    if not any(not known.revoked for known in found) and name.startswith("["):
        bare = name[1:].rpartition("]")[0]
        found += [known for file in files for known in _read(bare, file, bare_host=True)]
    return found


def judge_host_key(offered: HostKey, known: Sequence[KnownKey]) -> Verdict:
    """`changed` also when only keys of other types are known: a new type alone is no proof of identity."""
    if any(k.revoked and k.key == offered for k in known):
        return "revoked"
    trusted = [k for k in known if not k.revoked]
    if any(k.key == offered for k in trusted):
        return "known"
    return "changed" if any(not k.bare_host for k in trusted) else "unknown"


def known_key_types(known: Sequence[KnownKey]) -> list[str]:
    """Types to ask the server for first, in file order."""
    return list(dict.fromkeys(k.key.key_type for k in known if not k.revoked))


def append_host_key(file: Path, name: str, key: HostKey) -> None:
    """Add one line, whole or not at all, and flush it to disk.

    Appended in one write rather than by rename: ssh itself appends to this file at any time, and a rename
    would drop the line it wrote in between.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    line = f"{name} {key.key_type} {base64.b64encode(key.blob).decode()}\n".encode()
    fd = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        size_bytes = os.fstat(fd).st_size
        if size_bytes and os.pread(fd, 1, size_bytes - 1) != b"\n":
            line = b"\n" + line
        os.write(fd, line)
        os.fsync(fd)
    finally:
        os.close(fd)


def _read(name: str, file: Path, *, bare_host: bool) -> list[KnownKey]:
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8", errors="replace")
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker == "@cert-authority":
            continue  # host certificates are not supported, so an authority proves nothing here
        key = _decode(words[1], words[2])
        if key is not None and _names_match(name, words[0].split(",")):
            revoked = marker == "@revoked"
            found.append(
                KnownKey(key=key, file=file, line_number=number, revoked=revoked, bare_host=bare_host)
            )
    return found


def _decode(key_type: str, text: str) -> HostKey | None:
    try:
        return HostKey(key_type=key_type, blob=base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return None  # as ssh: a damaged line vouches for nobody


def _names_match(name: str, patterns: Sequence[str]) -> bool:
    hit = False
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        matches = _hash_matches(name, bare) if bare.startswith("|1|") else _pattern_matches(name, bare)
        if matches and pattern.startswith("!"):
            return False
        hit = hit or matches
    return hit


def _pattern_matches(name: str, pattern: str) -> bool:
    literal_brackets = pattern.lower().replace("[", "[[]")  # only * and ? are special in known_hosts
    return fnmatch.fnmatchcase(name.lower(), literal_brackets)


def _hash_matches(name: str, hashed: str) -> bool:
    try:
        salt, digest = (base64.b64decode(part) for part in hashed[3:].split("|"))
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.lower().encode(), hashlib.sha1).digest(), digest)
