"""Pure: which addresses a registry may have. https, ssh, or a directory of this machine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from launcher.errors import UsageError
from launcher.registry.reference import shown

_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]+\]")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}")
_PATH = re.compile(r"[A-Za-z0-9/~][A-Za-z0-9._/~+@%-]*")
_SCP = re.compile(r"(?:(?P<user>[^@/:]+)@)?(?P<host>[^@/:]+):(?P<path>[^:].*)")

Protocol = Literal["https", "ssh", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryUrl:
    """`protocol` is git's word: https, ssh or file. `text` is what git gets."""

    protocol: Protocol
    text: str


def parse_url(text: str) -> RegistryUrl:
    """Raises UsageError for everything else, credentials in the address among it."""
    if not text or not text.isprintable() or text != text.strip() or text.startswith("-") or "::" in text:
        raise _wrong(text, "it is no https or ssh address and no directory")
    if "://" in text:
        return _with_scheme(text)
    if Path(text).expanduser().is_dir():
        return RegistryUrl(protocol="file", text=str(Path(text).expanduser().resolve()))
    match = _SCP.fullmatch(text)
    if match is None:
        raise _wrong(text, "there is no such directory")
    _check_host(text, match["user"], match["host"], match["path"])
    return RegistryUrl(protocol="ssh", text=text)


def _with_scheme(text: str) -> RegistryUrl:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise _wrong(text, str(error)) from None
    if parts.scheme == "file":
        raise _wrong(text, "a directory is named by its path, without file://")
    if parts.scheme not in ("https", "ssh"):
        raise _wrong(text, f"{parts.scheme} is neither https nor ssh")
    if parts.password is not None or (parts.scheme == "https" and parts.username is not None):
        masked = f"{parts.scheme}://***@{parts.hostname or ''}{parts.path}"
        raise UsageError(
            f"a registry's address must hold no credentials, got {shown(masked)}.",
            hint="use a git credential helper (git config --global credential.helper) or an SSH key",
        )
    if parts.query or parts.fragment or (port is not None and not 0 < port < 65536):
        raise _wrong(text, "it must end with the path")
    netloc = parts.netloc.rpartition("@")[2]
    host = re.sub(r":\d*$", "", netloc)
    _check_host(text, parts.username, host, parts.path.lstrip("/"))
    return RegistryUrl(protocol="https" if parts.scheme == "https" else "ssh", text=text)


def _check_host(text: str, user: str | None, host: str, path: str) -> None:
    if user is not None and not _USER.fullmatch(user):
        raise _wrong(text, "the user's name has characters that no name has")
    if not _HOST.fullmatch(host):
        raise _wrong(text, "the host's name has characters that no name has")
    if not _PATH.fullmatch(path):
        raise _wrong(text, "the path must be plain letters, digits and / . _ - ~ +")


def _wrong(text: str, why: str) -> UsageError:
    return UsageError(
        f"a registry must be an https or ssh address or a directory, got {shown(text)}: {why}.",
        hint="sparkctl recipe registry add team https://example.org/team/recipes.git",
    )
