"""The git command, held short: no hooks, no helpers of a repository, no checkout, one protocol, limits.

Nothing here ever checks a tree out, so filters, LFS, submodules and symbolic links have nowhere to act. Of
the user's configuration only the credential helper is taken over, and only for https.
"""

from __future__ import annotations

import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.errors import UsageError
from launcher.registry.bounded_talk import SaysTooMuch, talk
from launcher.registry.errors import RegistryRefused, RegistryUnreachable
from launcher.registry.reference import shown

# A registry of 5000 recipes has a few MB. What is larger is no registry; git ends when it would write more.
MAX_PACK_BYTES = 64 << 20
# A pack may unfold to much more than it has: git must not take the machine's memory for it.
MAX_MEMORY_BYTES = 1 << 30
MAX_ANSWER_BYTES = 64 << 20
TIMEOUT_S = 120.0

_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.symlinks=false",
    "core.bigFileThreshold=1m",  # larger files pass through in pieces
    "protocol.ext.allow=never",
    "fetch.fsckObjects=true",
    "transfer.fsckObjects=true",
    "fetch.unpackLimit=1",  # one pack file, to which the limit of a file's size applies
    "fetch.recurseSubmodules=false",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.threads=1",
    "commit.gpgSign=false",
    "push.gpgSign=false",
    "push.recurseSubmodules=no",
    "http.followRedirects=false",
)
_KEPT = (
    "PATH", "HOME", "USER", "LOGNAME", "SSH_AUTH_SOCK", "SSH_AGENT_PID", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY",
    "ALL_PROXY", "all_proxy",
)  # fmt: skip


def git(
    words: Sequence[str], *, repository: Path | None = None, stdin: bytes = b"", protocol: str = "none",
    environment: dict[str, str] | None = None, timeout_s: float = TIMEOUT_S, is_push: bool = False,
    max_answer_bytes: int = MAX_ANSWER_BYTES,
) -> bytes:  # fmt: skip
    """stdout. `protocol`: the only one that git may speak. Raises RegistryRefused past a limit, otherwise
    RegistryUnreachable with git's own last line.
    """
    command = [_program(), *_options(protocol), *words]
    env = {**_environment(protocol), **(environment or {})}
    if repository is not None:
        env["GIT_DIR"] = str(repository)
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env,
        cwd=repository or "/", preexec_fn=_limit, start_new_session=True,
    )  # fmt: skip
    try:
        out, err = talk(process, stdin, timeout_s=timeout_s, max_bytes=max_answer_bytes)
    except SaysTooMuch:
        raise RegistryRefused(
            f"a registry must give git {words[0]} at most {max_answer_bytes >> 20} MiB to say, it gave more.",
            hint="tell its owner to keep only recipes in it; nothing of it was kept",
        ) from None
    except subprocess.TimeoutExpired:
        raise RegistryUnreachable(
            f"git {words[0]} must end within {timeout_s:.0f} s, it did not.",
            hint="look at the network, then repeat the command: nothing was changed",
        ) from None
    finally:
        _end(process)
    if process.returncode == 0:
        return out
    raise _failure(words[0], process.returncode, err.decode("utf-8", "replace"), is_push=is_push)


def user_identity() -> tuple[str, str]:
    """Name and address of whoever pushes, from the user's own configuration. Raises UsageError."""
    found = [_user_setting(f"user.{key}") for key in ("name", "email")]
    if not all(found):
        raise UsageError(
            "git must know who you are: user.name and user.email must be set, got none.",
            hint="git config --global user.name NAME && git config --global user.email ADDRESS",
        )
    return found[0][0], found[1][0]


def _user_setting(key: str) -> list[str]:
    env = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CONFIG_HOME") if name in os.environ}
    done = subprocess.run([_program(), "config", "--global", "--get-all", key], env=env, cwd="/",
                          capture_output=True, text=True, check=False, timeout=10)  # fmt: skip
    return done.stdout.splitlines() if done.returncode == 0 else []


def _program() -> str:
    found = shutil.which("git")
    if found is None:
        raise UsageError(
            "git must be installed for registries, got none in PATH.", hint="sudo apt install git"
        )
    return found


def _options(protocol: str) -> list[str]:
    settings = list(_SETTINGS)
    if protocol == "https":
        settings += [f"credential.helper={value}" for value in _user_setting("credential.helper")]
    return [word for setting in settings for word in ("-c", setting)]


def _environment(protocol: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    if protocol == "ssh":
        kept.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=10")
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_ALLOW_PROTOCOL": protocol,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "GIT_OPTIONAL_LOCKS": "0",
    }


def _limit() -> None:
    """In the child, before git: its children inherit these."""
    # git then says "File too large" instead of dying without a word
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_PACK_BYTES, MAX_PACK_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever git has started ends with it, also after Ctrl-C."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


_TOO_LARGE = re.compile(
    r"File too large|File size limit|signal 25|SIGXFSZ|[Oo]ut of memory|mmap failed|malloc|allocat"
)
_FSCK = re.compile(r"(?:error|fatal): (?:object [0-9a-f]+: (?P<rule>[^\n]+)|fsck error in packed object)")


def _failure(verb: str, status: int, talk: str, *, is_push: bool) -> RegistryRefused | RegistryUnreachable:
    lines = [line.strip() for line in talk.splitlines() if line.strip()]
    broken = _FSCK.search(talk)
    if broken:
        return RegistryRefused(
            f"the registry must hold well-formed git objects, got: {shown(broken['rule'] or broken[0])}.",
            hint="tell its owner; nothing of it was kept",
        )
    if _TOO_LARGE.search(talk) or status == -signal.SIGXFSZ:
        return RegistryRefused(
            f"a registry must have at most {MAX_PACK_BYTES >> 20} MiB, got more.",
            hint="tell its owner to keep only recipes in it; nothing of it was kept",
        )
    telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:", "ERROR:", "!"))]
    said = (telling or lines or [f"exit status {status}"])[-1 if is_push else 0]
    if "Could not read from remote repository" in talk and lines and lines[0] not in telling:
        said = lines[0]  # ssh's own word; git only says that there was no answer
    hint = "try the same by hand: git ls-remote URL; then repeat the command: nothing was changed"
    if "dubious ownership" in talk:
        hint = "the directory belongs to another user: reach it by ssh instead, or copy it"
    return RegistryUnreachable(f"git {verb} must succeed, got: {shown(said)}.", hint=hint)
