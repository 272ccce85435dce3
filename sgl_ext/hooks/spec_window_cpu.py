"""build_ragged_verify_window: as spec_window.py, where SGLang has no kernels."""

from __future__ import annotations

from sgl_ext.hook import Hook, HookKind
from sgl_ext.hooks.spec_window import MODULE, take_rows

HOOK = Hook(
    target=f"{MODULE}.build_ragged_verify_window",
    kind=HookKind.AROUND,
    replacement=take_rows,
    reason="what a CPU engine proves of the rows holds for a GPU's too",
    sglang_versions=("0.5.23",),
    fingerprint="9f0968ad574a4faf",
    remove_when="SGLang takes a ragged verify's rows from its window",
)
