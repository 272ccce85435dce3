"""SGLang's entry point into this plugin, called first in every SGLang process.

Light: standard library only at import, and only the scheduler gets a hook. SGLang logs and ignores what a
plugin raises, so a refusal here ends the process instead.
"""

from __future__ import annotations

import os
import sys
from importlib import metadata
from types import FrameType


def register() -> None:
    """Prepare this process; ends it with a named reason where the plugin cannot do its work."""
    try:
        _register(sys._getframe(1))
    except Exception as error:  # a half-copied plugin; SGLang would log it and serve without the hooks
        print(f"sgl_ext refuses to start: it cannot be imported: {error!r}", file=sys.stderr, flush=True)
        raise SystemExit(70) from error


def _register(caller: FrameType) -> None:
    from sgl_ext.errors import SglExtError
    from sgl_ext.process_role import find_process_role
    from sgl_ext.rank_report import write_refusal
    from sgl_ext.settings import read_settings

    role = find_process_role(caller)
    settings = None
    try:
        settings = read_settings(os.environ)
        _prepare(role, settings)
    except Exception as error:  # top of the plugin: SGLang would swallow it
        write_refusal(settings, where=f"{role}-{os.getpid()}", error=error)
        code = error.exit_code if isinstance(error, SglExtError) else SglExtError.exit_code
        print(f"sgl_ext refuses to start ({role}): {error}", file=sys.stderr, flush=True)
        raise SystemExit(code) from error


def _prepare(role: object, settings: object) -> None:
    from sgl_ext.process_role import ProcessRole
    from sgl_ext.settings import Settings

    assert isinstance(settings, Settings)
    if settings.cpu_engine:
        from sgl_ext.stand_ins import add_stand_ins

        add_stand_ins()
    if role is ProcessRole.MAIN and settings.cpu_engine:
        _prepare_cpu_main(settings.fork_children)
    if role is not ProcessRole.SCHEDULER:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    from sgl_ext.hooks.scheduler_init import HOOK
    from sgl_ext.install_hooks import check_fingerprints, check_version

    check_version([HOOK], metadata.version("sglang"))
    check_fingerprints([HOOK])
    # load_plugins() applies it right after all plugins have run.
    HookRegistry.register(HOOK.target, HOOK.replacement, HookType(HOOK.kind.value))


def _prepare_cpu_main(fork_children: bool) -> None:
    """The CPU engine's main process imports SGLang anyway, and reads the arguments before any rank exists."""
    import gc

    from sgl_ext.errors import EffectError
    from sgl_ext.hook import resolve_target
    from sgl_ext.hooks import dspark_arguments
    from sgl_ext.hooks import fork_children as forking
    from sgl_ext.install_hooks import install_hooks

    hooks = [dspark_arguments.HOOK]
    if fork_children:
        # A quarter of the imports' CPU time is collection that frees nothing; the hook enables it again.
        gc.disable()
        hooks.append(forking.HOOK)
    for item in install_hooks(hooks, metadata.version("sglang")):
        if resolve_target(item.hook.target) is item.original:
            raise EffectError(
                f"The hook on {item.hook.target} must be in effect, got SGLang's own function.",
                hint="see SGLang's log above for why it was not applied, or set SGLANG_PLUGINS to leave "
                "the plugin out",
            )
