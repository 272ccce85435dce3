"""What one rank really runs with, as JSON for `sparkctl audit`: hooks, versions, fingerprints, settings."""

from __future__ import annotations

import json
import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from sgl_ext.errors import SglExtError
from sgl_ext.hook_sets import HookSet
from sgl_ext.install_hooks import InstalledHook
from sgl_ext.settings import Settings
from sgl_ext.write_atomically import write_atomically

SCHEMA_VERSION = 1
_DISTRIBUTIONS = (
    "sglang",
    "sparkctl",
    "torch",
    "transformers",
    "triton",
    "flashinfer-python",
    "sglang-kernel",
    "b12x",
)
_ENVIRONMENT_PREFIXES = ("SPARKCTL_", "SGLANG_", "NCCL_", "GLOO_")
_SECRET_WORDS = ("key", "password", "token_file", "secret")


def write_rank_report(
    settings: Settings,
    *,
    rank: int,
    hook_sets: Sequence[HookSet],
    installed: Sequence[InstalledHook],
    server_args: Any,
    details: dict[str, object],
) -> None:
    """Writes rank-RR.json into the report directory; does nothing where none is set."""
    if settings.report_dir is None:
        return
    report = {
        **_identity(rank),
        "versions": read_versions(),
        "hook_sets": [str(hook_set) for hook_set in hook_sets],
        "hooks": [_describe_hook(item) for item in installed],
        "settings": settings.as_json(),
        "server_args": describe_server_args(server_args),
        "resolved": describe_resolved(server_args),
        "details": details,
    }
    _write(report_path(settings.report_dir, rank), report)


def write_refusal(settings: Settings | None, *, where: str, error: Exception) -> None:
    """Writes refusal-WHERE.json, so that the launcher can name the cause without reading logs."""
    if settings is None or settings.report_dir is None:
        return
    from engram.errors import EngramError  # not at import: this module is loaded in every SGLang process

    known = error if isinstance(error, (SglExtError, EngramError)) else None
    refusal = {
        "schema_version": SCHEMA_VERSION,
        "where": where,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "kind": type(error).__name__,
        "message": known.message if known else repr(error),
        "hint": known.hint if known else "",
        "exit_code": known.exit_code if known else SglExtError.exit_code,
    }
    _write(settings.report_dir / f"refusal-{where}.json", refusal)


def report_path(report_dir: Path, rank: int) -> Path:
    return report_dir / f"rank-{rank:02d}.json"


def read_versions() -> dict[str, str | None]:
    """Versions of the distributions that decide behaviour; None where one is not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def describe_server_args(server_args: Any) -> dict[str, object]:
    """Every field of SGLang's ServerArgs (a msgspec Struct) with a plain value; secrets are left out."""
    return _plain({name: getattr(server_args, name) for name in server_args.__struct_fields__})


def describe_resolved(server_args: Any) -> dict[str, object]:
    """What SGLang decided where an argument left it open or could not stand; the arguments stay as given."""
    decided: dict[str, object] = {}
    for _, fields in getattr(server_args, "_resolved_overrides", None) or ():  # the last one counts
        decided |= fields
    return _plain(
        {name: value for name, value in decided.items() if value != getattr(server_args, name, None)}
    )


def _plain(values: Mapping[str, object]) -> dict[str, object]:
    plain: dict[str, object] = {}
    for name, value in values.items():
        if any(word in name for word in _SECRET_WORDS):
            plain[name] = "(secret)" if value else None
        elif isinstance(value, (str, int, float, bool)) or value is None:
            plain[name] = value
    return plain


def describe_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of SGLang, its collectives and this plugin in this process; secrets are left out."""
    return {
        name: "(secret)" if any(word in name.lower() for word in _SECRET_WORDS) else value
        for name, value in sorted(environment.items())
        if name.startswith(_ENVIRONMENT_PREFIXES)
    }


def _identity(rank: int) -> dict[str, object]:
    return {
        "schema_version": SCHEMA_VERSION,
        "rank": rank,
        "host": socket.gethostname(),
        "machine": platform.machine(),
        "pid": os.getpid(),
    }


def _describe_hook(item: InstalledHook) -> dict[str, object]:
    hook = item.hook
    return {
        "target": hook.target,
        "kind": str(hook.kind),
        "reason": hook.reason,
        "sglang_versions": list(hook.sglang_versions),
        "fingerprint": item.fingerprint_seen,
        "remove_when": hook.remove_when,
        "in_effect": True,  # verify_hooks raises before a report is written otherwise
    }


def _write(path: Path, content: dict[str, object]) -> None:
    write_atomically(path, json.dumps(content, indent=1, sort_keys=True).encode() + b"\n")
