"""Fingerprints, installation and proof, on a module written for the test."""

from __future__ import annotations

import importlib
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sgl_ext.errors import DriftError, EffectError, TargetError, VersionError
from sgl_ext.hook import Hook, HookKind, resolve_target, take_fingerprint
from sgl_ext.install_hooks import InstalledHook, check_fingerprints, check_version
from sgl_ext.verify_hooks import find_problem, verify_hooks

SOURCE = """
def scale(x):
    return 2 * x


class Table:
    def read(self):
        return "memory"

    @classmethod
    def build(cls):
        return cls()
"""


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "toy_wheel.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("toy_wheel")
    sys.modules.pop("toy_wheel")


def make_hook(target: str, *, replacement: Any = None, **changes: Any) -> Hook:
    fields: dict[str, Any] = {
        "target": target,
        "kind": HookKind.REPLACE,
        "replacement": replacement or (lambda x: x),
        "reason": "test",
        "sglang_versions": ("0.5.23",),
        "fingerprint": take_fingerprint(target),
        "remove_when": "never",
    }
    return Hook(**(fields | changes))


def installed(hook: Hook) -> InstalledHook:
    return InstalledHook(hook=hook, original=resolve_target(hook.target), fingerprint_seen=hook.fingerprint)


def sglang_replace(original: Any, hook: Any) -> Any:
    """The same shape of wrapper that SGLang's hook registry builds for REPLACE."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(*args, **kwargs)

    wrapper.__wrapped__ = original  # type: ignore[attr-defined]
    return wrapper


def sglang_around(original_fn: Any, hook: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return hook(original_fn, *args, **kwargs)

    wrapper.__wrapped__ = original_fn  # type: ignore[attr-defined]
    return wrapper


def test_fingerprint_follows_the_source_text(wheel: Any, tmp_path: Path) -> None:
    before = take_fingerprint("toy_wheel.Table.read")
    assert before == take_fingerprint("toy_wheel.Table.read")
    (tmp_path / "toy_wheel.py").write_text(SOURCE.replace('"memory"', '"disk"'))
    importlib.reload(wheel)
    import linecache

    linecache.checkcache()
    assert take_fingerprint("toy_wheel.Table.read") != before


def test_a_renamed_target_is_named(wheel: Any) -> None:
    with pytest.raises(TargetError, match=r"toy_wheel\.Table\.write must exist .* no attribute 'write'"):
        take_fingerprint("toy_wheel.Table.write")
    with pytest.raises(TargetError, match=r"toy_wheel\.Rows\.read must exist .* no attribute 'Rows'"):
        take_fingerprint("toy_wheel.Rows.read")
    with pytest.raises(TargetError, match="ModuleNotFoundError"):
        take_fingerprint("toy_wheel_absent.scale")


def test_drift_and_version_are_refused_by_name(wheel: Any) -> None:
    good = make_hook("toy_wheel.scale")
    assert check_fingerprints([good]) == {"toy_wheel.scale": good.fingerprint}
    with pytest.raises(DriftError, match=r"source of toy_wheel\.scale must have fingerprint 0000, got"):
        check_fingerprints([make_hook("toy_wheel.scale", fingerprint="0000")])
    check_version([good], "0.5.23")
    with pytest.raises(
        VersionError, match=r"must be 0\.5\.23 for the hook on toy_wheel\.scale, got 0\.5\.24"
    ):
        check_version([good], "0.5.24")


def test_an_applied_hook_is_in_effect(wheel: Any) -> None:
    hook = make_hook("toy_wheel.scale")
    item = installed(hook)
    assert "without the hook" in (find_problem(item) or "")
    wheel.scale = sglang_replace(wheel.scale, hook.replacement)
    assert find_problem(item) is None
    # Somebody's AROUND on top still calls ours.
    wheel.scale = sglang_around(wheel.scale, lambda original, x: original(x))
    assert find_problem(item) is None
    # Somebody's REPLACE on top does not.
    wheel.scale = sglang_replace(wheel.scale, lambda x: -x)
    assert "another plugin replaced the target" in (find_problem(item) or "")


def test_a_class_must_be_ours(wheel: Any) -> None:
    class DiskTable:
        pass

    item = installed(make_hook("toy_wheel.Table", replacement=DiskTable))
    assert find_problem(item) == "the name is bound to toy_wheel.Table"
    wheel.Table = DiskTable
    assert find_problem(item) is None


def test_a_stale_binding_is_found(wheel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = make_hook("toy_wheel.scale")
    item = installed(hook)
    user = types.ModuleType("sglang.user_of_scale")
    user.scale = wheel.scale  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang.user_of_scale", user)
    wheel.scale = sglang_replace(wheel.scale, hook.replacement)
    assert find_problem(item) == "the original is still bound as sglang.user_of_scale.scale"


def test_verify_names_the_hook_and_asks_its_own_check(wheel: Any) -> None:
    item = installed(make_hook("toy_wheel.scale"))
    with pytest.raises(EffectError, match=r"replace hook on toy_wheel\.scale must be in effect"):
        verify_hooks([item], scheduler=None)

    checked = make_hook("toy_wheel.Table.build", check_effect=lambda scheduler: f"{scheduler} has no table")
    item = installed(checked)
    original = wheel.Table.__dict__["build"].__func__
    wheel.Table.build = classmethod(sglang_replace(original, checked.replacement))
    with pytest.raises(EffectError, match="rank 0 has no table"):
        verify_hooks([item], scheduler="rank 0")
