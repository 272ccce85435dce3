"""Install a hook set: check version and fingerprint of every target first, then patch all, or none."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sgl_ext.errors import DriftError, VersionError
from sgl_ext.hook import Hook, resolve_target, take_fingerprint
from sgl_ext.hook_sets import HOOK_MODULES, HookSet


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledHook:
    """A hook with what its target was before: the object (to find stale bindings) and its fingerprint."""

    hook: Hook
    original: Any
    fingerprint_seen: str


def load_hooks(hook_sets: Iterable[HookSet]) -> tuple[Hook, ...]:
    """The hooks of the sets in order of installation; each module under sgl_ext.hooks holds one HOOK."""
    names = [name for hook_set in hook_sets for name in HOOK_MODULES[hook_set]]
    return tuple(importlib.import_module(f"sgl_ext.hooks.{name}").HOOK for name in names)


def check_version(hooks: Sequence[Hook], sglang_version: str) -> None:
    for hook in hooks:
        if sglang_version not in hook.sglang_versions:
            raise VersionError(
                f"SGLang must be {' or '.join(hook.sglang_versions)} for the hook on {hook.target}, "
                f"got {sglang_version}.",
                hint=f"pip install sglang=={hook.sglang_versions[-1]}, "
                "or take the plugin out of this engine by SGLANG_PLUGINS",
            )


def check_fingerprints(hooks: Sequence[Hook]) -> dict[str, str]:
    """Target -> fingerprint seen. Raises TargetError or DriftError naming the target."""
    seen = {}
    for hook in hooks:
        seen[hook.target] = take_fingerprint(hook.target)
        if seen[hook.target] != hook.fingerprint:
            raise DriftError(
                f"The source of {hook.target} must have fingerprint {hook.fingerprint}, "
                f"got {seen[hook.target]} (installed SGLang was changed or is another build).",
                hint="reinstall the wheel: pip install --force-reinstall --no-deps "
                f"sglang=={hook.sglang_versions[-1]}",
            )
    return seen


def install_hooks(hooks: Sequence[Hook], sglang_version: str) -> tuple[InstalledHook, ...]:
    """Checks all hooks, then registers and applies them. Nothing is patched where one check fails."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    check_version(hooks, sglang_version)
    seen = check_fingerprints(hooks)
    installed = tuple(
        InstalledHook(hook=hook, original=resolve_target(hook.target), fingerprint_seen=seen[hook.target])
        for hook in hooks
    )
    for hook in hooks:
        HookRegistry.register(hook.target, hook.replacement, HookType(hook.kind.value))
    # SGLang patches each target once and logs a failure; verify_hooks proves the outcome.
    HookRegistry.apply_hooks()
    return installed
