"""One hook: what it replaces in SGLang, why, for which versions, and when it can go."""

from __future__ import annotations

import enum
import hashlib
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sgl_ext.errors import TargetError


class HookKind(enum.StrEnum):
    """SGLang's hook kinds (srt/plugins/hook_registry.py): how the hook sees the call."""

    BEFORE = "before"
    AFTER = "after"
    AROUND = "around"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A hook on one SGLang target.

    fingerprint is of the target's source text in the versions named; a target whose text differs is refused,
    since a hook bound to changed code can be silently wrong. check_effect, where given, looks at the built
    scheduler and returns what is wrong, or None: proof beyond "the name is patched".
    """

    target: str
    kind: HookKind
    replacement: Callable[..., Any]
    reason: str
    sglang_versions: tuple[str, ...]
    fingerprint: str
    remove_when: str
    check_effect: Callable[[Any], str | None] | None = None


def resolve_target(target: str) -> Any:
    """The object a dotted path names, imported as needed; classmethod and staticmethod wrappers removed."""
    module_path, rest = _split_target(target)
    holder: Any = _import_target_module(target, module_path)
    *path, name = rest.split(".")
    for step in path:
        holder = getattr(holder, step, None)
        if holder is None:
            raise _missing(target, f"no attribute {step!r}")
    found = vars(holder).get(name) if isinstance(holder, type) else None
    if found is None:
        found = getattr(holder, name, None)
    if found is None:
        raise _missing(target, f"no attribute {name!r}")
    return found.__func__ if isinstance(found, (classmethod, staticmethod)) else found


def take_fingerprint(target: str) -> str:
    """First 16 hex digits of the SHA-256 of the target's source text."""
    try:
        source = inspect.getsource(inspect.unwrap(resolve_target(target)))
    except (OSError, TypeError) as error:
        raise _missing(target, f"no source text ({error})") from error
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _split_target(target: str) -> tuple[str, str]:
    """Module path and attribute path: the longest leading part that importlib can find is the module."""
    parts = target.split(".")
    for num in range(1, len(parts)):
        try:
            spec = importlib.util.find_spec(".".join(parts[: num + 1]))
        except ModuleNotFoundError:  # parts[:num] is a module, not a package
            spec = None
        if spec is None:
            return ".".join(parts[:num]), ".".join(parts[num:])
    raise _missing(target, "a module")


def _import_target_module(target: str, module_path: str) -> Any:
    try:
        return importlib.import_module(module_path)
    except ImportError as error:
        raise _missing(target, f"{type(error).__name__}: {error}") from error


def _missing(target: str, seen: str) -> TargetError:
    return TargetError(
        f"Hook target {target} must exist in the installed SGLang, got {seen}.",
        hint="install the SGLang version this plugin names: python -m sgl_ext.fingerprints",
    )
