"""Proof that hooks are in effect, since SGLang only logs what goes wrong with a plugin."""

from __future__ import annotations

import sys
import types
from collections.abc import Sequence
from typing import Any

from sgl_ext.errors import EffectError
from sgl_ext.hook import resolve_target
from sgl_ext.install_hooks import InstalledHook


def verify_hooks(installed: Sequence[InstalledHook], scheduler: Any) -> None:
    """Raises EffectError naming the first hook that is not in effect. Call it once the model is built."""
    for item in installed:
        hook = item.hook
        problem = find_problem(item)
        if problem is None and hook.check_effect is not None:
            problem = hook.check_effect(scheduler)
        if problem is not None:
            raise EffectError(
                f"The {hook.kind} hook on {hook.target} must be in effect, got: {problem}.",
                hint="remove other SGLang plugins (SGLANG_PLUGINS=sgl_ext) and start again",
            )


def find_problem(item: InstalledHook) -> str | None:
    """What keeps one installed hook from being called, or None."""
    current = resolve_target(item.hook.target)
    replacement = item.hook.replacement
    if isinstance(replacement, type):
        if current is not replacement:
            return f"the name is bound to {_describe(current)}"
    else:
        problem = _chain_problem(current, replacement)
        if problem is not None:
            return problem
    stale = _stale_bindings(item.original, current)
    return f"the original is still bound as {', '.join(stale)}" if stale else None


def _chain_problem(current: Any, replacement: Any) -> str | None:
    link = current
    while link is not None:
        code = getattr(link, "__code__", None)
        cells = dict(zip(code.co_freevars, link.__closure__ or (), strict=True)) if code else {}
        hook = cells["hook"].cell_contents if "hook" in cells else None
        if hook is replacement:
            return None
        # A REPLACE wrapper (hook, but no original_fn) never calls what it wraps.
        if hook is not None and "original_fn" not in cells:
            return f"another plugin replaced the target ({_describe(hook)})"
        link = getattr(link, "__wrapped__", None)
    return f"the target is {_describe(current)} without the hook"


def _stale_bindings(original: Any, current: Any) -> list[str]:
    """Module attributes that still hold the unpatched object ("from X import Y" after the patch)."""
    if current is original:
        return []
    return [
        f"{name}.{attribute}"
        for name, module in list(sys.modules.items())
        if isinstance(module, types.ModuleType) and name.startswith("sglang.")
        for attribute, value in list(vars(module).items())
        if value is original
    ]


def _describe(found: Any) -> str:
    return f"{getattr(found, '__module__', '?')}.{getattr(found, '__qualname__', repr(found))}"
