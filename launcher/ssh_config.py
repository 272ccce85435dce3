"""Read OpenSSH client configuration: what `ssh HOST` would use, for the settings the launcher honours.

Own reader, because paramiko's knows no Include, and vendors' desktop tools add hosts through one.
Rules of ssh_config(5): the first value obtained wins; IdentityFile values add up.
"""

from __future__ import annotations

import fnmatch
import getpass
import re
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
MAX_INCLUDE_DEPTH = 16  # as OpenSSH
# Settings read; of any other keyword the launcher takes no notice.
KEYWORDS = (
    *("hostname", "user", "port", "identityfile", "identitiesonly", "identityagent", "proxyjump"),
    *("proxycommand", "userknownhostsfile", "globalknownhostsfile", "hostkeyalias"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SshHostSettings:
    """What the configuration says about one host; None or empty where it says nothing."""

    host_name: str
    user: str | None
    port: int | None
    identity_files: tuple[Path, ...]
    identities_only: bool
    identity_agent: str | None
    proxy_jump: str | None
    proxy_command: str | None
    user_known_hosts_files: tuple[Path, ...] | None
    global_known_hosts_files: tuple[Path, ...] | None
    host_key_alias: str | None


@dataclass(frozen=True, slots=True)
class _Line:
    keyword: str
    words: tuple[str, ...]
    where: str


def read_ssh_settings(
    alias: str, *, config_file: Path | None = None, user: str | None = None
) -> SshHostSettings:
    """Settings for `ssh ALIAS`. `config_file` replaces the default files, as `ssh -F`; `user` as `ssh -l`."""
    if config_file is not None and not config_file.is_file():
        raise ConfigError(f"SSH configuration must be a file, got nothing there ({config_file}).")
    files = [config_file] if config_file is not None else [Path.home() / ".ssh" / "config", SYSTEM_CONFIG]
    lookup = _Lookup(alias, user)
    for file in files:
        if file.is_file():
            lookup.read(file, depth=0)
    return lookup.settings()


class _Lookup:
    """Collects the values that apply to one alias."""

    def __init__(self, alias: str, user: str | None) -> None:
        self._alias = alias
        self._user = user
        self._values: dict[str, _Line] = {}
        self._identity_files: list[str] = []

    def read(self, file: Path, *, depth: int) -> None:
        if depth > MAX_INCLUDE_DEPTH:
            raise ConfigError(f"Include must be at most {MAX_INCLUDE_DEPTH} deep, got more ({file}).")
        applies = True
        for line in _lines(file):
            if line.keyword == "host":
                applies = _matches(self._alias, line.words)
            elif line.keyword == "match":
                applies = self._match_applies(line)
            elif applies and line.keyword == "include":
                for found in _included(line.words):
                    self.read(found, depth=depth + 1)
            elif applies and line.keyword in KEYWORDS:
                self._take(line)

    def settings(self) -> SshHostSettings:
        host_name = (self._one("hostname") or self._alias).replace("%h", self._alias).replace("%%", "%")
        user = self._user or self._one("user")
        port = self._port()
        tokens = {
            "%h": host_name,
            "%n": self._alias,
            "%p": str(port or 22),
            "%r": user or getpass.getuser(),
            "%u": getpass.getuser(),
            "%d": str(Path.home()),
            "%l": socket.gethostname(),
            "%L": socket.gethostname().split(".")[0],
            "%k": self._one("hostkeyalias") or host_name,
            "%%": "%",
        }

        def paths(words: list[str] | tuple[str, ...]) -> tuple[Path, ...]:
            return tuple(_expand(word, tokens) for word in words if word.lower() != "none")

        user_files = self._values.get("userknownhostsfile")
        global_files = self._values.get("globalknownhostsfile")
        agent = self._one("identityagent")
        return SshHostSettings(
            host_name=host_name,
            user=user,
            port=port,
            identity_files=paths(self._identity_files),
            identities_only=(self._one("identitiesonly") or "no").lower() in ("yes", "true"),
            identity_agent=str(_expand(agent, tokens)) if agent and "/" in agent else agent,
            proxy_jump=self._one("proxyjump"),
            proxy_command=self._rest("proxycommand"),
            user_known_hosts_files=None if user_files is None else paths(user_files.words),
            global_known_hosts_files=None if global_files is None else paths(global_files.words),
            host_key_alias=self._one("hostkeyalias"),
        )

    def _take(self, line: _Line) -> None:
        if line.keyword == "identityfile":
            self._identity_files += [w for w in line.words if w not in self._identity_files]
        elif line.keyword in ("proxyjump", "proxycommand"):
            # whichever of the two comes first wins over both
            if "proxyjump" not in self._values and "proxycommand" not in self._values:
                self._values[line.keyword] = line
        else:
            self._values.setdefault(line.keyword, line)

    def _one(self, keyword: str) -> str | None:
        line = self._values.get(keyword)
        return line.words[0] if line is not None else None

    def _rest(self, keyword: str) -> str | None:
        line = self._values.get(keyword)
        return " ".join(line.words) if line is not None else None

    def _port(self) -> int | None:
        line = self._values.get("port")
        if line is None:
            return None
        if not line.words[0].isdigit() or not 0 < int(line.words[0]) < 65536:
            raise ConfigError(f"Port must be 1 to 65535, got {line.words[0]} ({line.where}).")
        return int(line.words[0])

    def _match_applies(self, line: _Line) -> bool:
        """All criteria of a Match line hold. One that the launcher cannot judge is refused, not guessed."""
        words = list(line.words)
        while words:
            negated = words[0].startswith("!")
            criterion = words.pop(0).lstrip("!").lower()
            if criterion == "all":
                holds = True
            elif criterion in ("canonical", "final"):
                holds = False  # the configuration is read once only
            elif criterion in ("host", "originalhost", "user", "localuser") and words:
                holds = _matches(self._match_subject(criterion), words.pop(0).split(","))
            else:
                raise ConfigError(
                    "Match must use host, originalhost, user, localuser or all,"
                    f" got {criterion} ({line.where}).",
                    hint="write this host as a plain `Host` block, or name another file in ssh.config_file",
                )
            if holds == negated:
                return False
        return True

    def _match_subject(self, criterion: str) -> str:
        if criterion == "host":
            return (self._one("hostname") or self._alias).replace("%h", self._alias)
        if criterion == "user":
            return self._user or self._one("user") or getpass.getuser()
        return self._alias if criterion == "originalhost" else getpass.getuser()


def _lines(file: Path) -> Iterator[_Line]:
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"SSH configuration must be readable, got {error.strerror} ({file}).") from error
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{file}:{number}"
        parts = re.match(r"(\w+)(?:\s*=\s*|\s+)(\S.*)", line)
        if parts is None:
            raise ConfigError(f"SSH configuration must be lines 'Keyword value', got {line!r} ({where}).")
        keyword, rest = parts[1].lower(), parts[2]
        yield _Line(keyword, _words(keyword, rest, where), where)


def _words(keyword: str, rest: str, where: str) -> tuple[str, ...]:
    if keyword == "proxycommand":  # handed to a shell as it stands
        return (rest,)
    try:
        words = tuple(shlex.split(rest, comments=True))
    except ValueError as error:
        if keyword in KEYWORDS or keyword in ("host", "match", "include"):
            raise ConfigError(f"SSH configuration must close its quotes, got {rest!r} ({where}).") from error
        return (rest,)
    return words or ("",)


def _included(words: tuple[str, ...]) -> Iterator[Path]:
    """Files of an Include: globs, `~`, and relative names under ~/.ssh."""
    for word in words:
        pattern = Path(word).expanduser()
        if not pattern.is_absolute():
            pattern = Path.home() / ".ssh" / pattern
        relative = str(pattern.relative_to(pattern.anchor))
        yield from sorted(f for f in Path(pattern.anchor).glob(relative) if f.is_file())


def _matches(subject: str, patterns: list[str] | tuple[str, ...]) -> bool:
    """ssh_config PATTERNS: any matches and no negated one does."""
    hit = False
    for pattern in patterns:
        if fnmatch.fnmatchcase(subject.lower(), pattern.lstrip("!").lower()):
            if pattern.startswith("!"):
                return False
            hit = True
    return hit


def _expand(word: str, tokens: dict[str, str]) -> Path:
    expanded = re.sub(r"%[a-zA-Z%]", lambda m: tokens.get(m[0], m[0]), word)
    return Path(expanded).expanduser()
