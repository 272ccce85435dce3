"""Scheduler.__init__: install this rank's hooks before anything of the model exists, prove them after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sgl_ext.hook import Hook, HookKind
from sgl_ext.start_rank import start_rank


def install_build_prove(
    original: Callable[..., None], scheduler: Any, server_args: Any, *args: Any, **kwargs: Any
) -> None:
    start_rank(lambda: original(scheduler, server_args, *args, **kwargs), scheduler, server_args)


HOOK = Hook(
    target="sglang.srt.managers.scheduler.Scheduler.__init__",
    kind=HookKind.AROUND,
    replacement=install_build_prove,
    reason="the one point of a scheduler process that sees the arguments before the model is built, and the "
    "built model before the first request; an exception here ends the engine",
    sglang_versions=("0.5.23",),
    fingerprint="a4a5297acc175a1e",
    remove_when="SGLang calls plugins before and after the model build and lets them refuse",
)
