"""Print every hook with its target's fingerprint in the installed SGLang: python -m sgl_ext.fingerprints

For whoever moves the hooks to another SGLang version: review each target that says DRIFTED, then write the
new fingerprint and version into its file under sgl_ext/hooks/. Without a GPU, set SGLANG_USE_CPU_ENGINE=1.
"""

from __future__ import annotations

import importlib
import os
import pkgutil

from sgl_ext import hooks
from sgl_ext.errors import TargetError
from sgl_ext.hook import Hook, take_fingerprint
from sgl_ext.settings import read_settings
from sgl_ext.stand_ins import add_stand_ins


def load_all_hooks() -> dict[str, Hook]:
    """Module name under sgl_ext.hooks -> its hook."""
    names = sorted(module.name for module in pkgutil.iter_modules(hooks.__path__))
    return {name: importlib.import_module(f"sgl_ext.hooks.{name}").HOOK for name in names}


def main() -> int:
    if read_settings(os.environ).cpu_engine:
        add_stand_ins()
    num_bad = 0
    for name, hook in load_all_hooks().items():
        try:
            seen = take_fingerprint(hook.target)
        except TargetError as error:
            seen = f"MISSING ({error.message})"
        state = "ok" if seen == hook.fingerprint else "DRIFTED"
        num_bad += state != "ok"
        print(f"{state:8}{seen:18}{name}: {hook.target}")
    return 1 if num_bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
