"""Start the engine's children by fork instead of spawn: each node imports SGLang once, not three times.

For the CPU engine only (a CUDA context does not survive a fork), and only on request
(SPARKCTL_FORK_CHILDREN=1). The processes, their names and their life are the same as with spawn.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
from pathlib import Path

from sgl_ext.errors import EffectError
from sgl_ext.hook import Hook, HookKind


def fork_children(result: None, server_args: object) -> None:
    """Runs after SGLang has set "spawn", just before it starts the scheduler and the detokenizer."""
    num_threads = len(list(Path("/proc/self/task").iterdir()))
    if num_threads != 1:
        raise EffectError(
            f"The main process must have 1 thread to fork its children, got {num_threads} (/proc/self/task).",
            hint="unset SPARKCTL_FORK_CHILDREN, and look for a plugin that starts a thread",
        )
    multiprocessing.set_start_method("fork", force=True)
    os.register_at_fork(after_in_child=_reset_child)
    gc.enable()  # register() had turned it off for the imports
    gc.freeze()  # what is loaded now stays; collecting it in a child would only copy shared pages


def _reset_child() -> None:
    """What a spawned child starts without: the parent's signal handler and "plugins are loaded"."""
    from sglang.srt import plugins

    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    plugins._plugins_loaded = False


HOOK = Hook(
    target="sglang.srt.entrypoints.engine._set_envs_and_config",
    kind=HookKind.AFTER,
    replacement=fork_children,
    reason="the imports are most of the CPU engine's start, and spawn repeats them in every child",
    sglang_versions=("0.5.23",),
    fingerprint="b3ddd8a51c625a11",
    remove_when="SGLang lets the start method be chosen, or imports in well under a second",
)
