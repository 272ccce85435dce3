"""run_engine.py with SGLang's CUDA decoder layers, which a CPU engine does not build otherwise.

Their code outside of kernels (boundaries between sublayers, who sums over the ranks) runs anywhere, so the
hook on it can be tested without a GPU. Only what chooses the layers is changed, and the children are forks.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sgl_ext import hook_sets

MODULE = "sglang.srt.models.deepseek_v4"


def choose_cuda_layers(module: Any) -> None:
    """The branches of these functions that a CUDA build takes; kernels stay those of the CPU engine."""
    module.DeepseekV4DecoderLayer = module.DeepseekV4CudaDecoderLayer
    for owner, name in (
        (module.MQALayer, "_project_wo_b"),
        (module.DeepseekV4Model, "_forward_layers_hc_pre_from_prev"),
        (module.DeepseekV4Model, "__init__"),
    ):
        own = vars(owner)[name]
        scope = dict(vars(module), _is_cuda=True)
        changed = types.FunctionType(own.__code__, scope, own.__name__, own.__defaults__, own.__closure__)
        changed.__kwdefaults__ = own.__kwdefaults__
        setattr(owner, name, changed)


class AfterImport(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds MODULE as Python does, and changes it once it is executed."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self._inner.exec_module(module)
        choose_cuda_layers(module)


if __name__ == "__main__":
    sys.meta_path.insert(0, AfterImport())
    modules = hook_sets.HOOK_MODULES
    modules[hook_sets.HookSet.SEQUENCE_PARALLEL] = modules[hook_sets.HookSet.GPU_SEQUENCE_PARALLEL]
    sys.argv[0] = str(Path(__file__).with_name("run_engine.py"))
    runpy.run_path(sys.argv[0], run_name="__main__")
