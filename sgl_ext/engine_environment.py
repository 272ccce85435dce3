"""SGLang switches that a hook set needs, set inside the rank's own process before the model is built."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from sgl_ext.errors import SettingError
from sgl_ext.hook_sets import HookSet

_SWITCHES: dict[HookSet, dict[str, str]] = {
    HookSet.CPU_V41: {
        # TileLang does not run on a CPU; SGLang then takes its own PyTorch forms of mHC.
        "SGLANG_OPT_USE_TILELANG_MHC_PRE": "0",
        "SGLANG_OPT_USE_TILELANG_MHC_POST": "0",
        # Decode metadata without DeepGEMM's plan; the scores come from the index_logits_decode hook.
        "SGLANG_FP8_PAGED_MQA_LOGITS_TORCH": "1",
        # Its plan is compiled by nvcc; torch.topk selects instead.
        "SGLANG_OPT_USE_TOPK_V2": "0",
    },
    HookSet.SPECULATION: {
        # Accepts that SGLang folds into graphs of their own take no cutoff.
        "SGLANG_DSPARK_FUSED_ACCEPT_TAIL": "0",
        "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH": "0",
        "SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH": "0",
        # It commits at the head of the next draft, which a step without a draft does not run.
        "SGLANG_DSPARK_DEFER_CONTEXT_KV": "0",
    },
}
_FALSE = ("0", "false")


def set_switches(environment: MutableMapping[str, str], hook_sets: Sequence[HookSet]) -> dict[str, str]:
    """Sets the switches and returns them. Raises SettingError where the environment says the opposite."""
    wanted = {name: value for hook_set in hook_sets for name, value in _SWITCHES.get(hook_set, {}).items()}
    for name, value in wanted.items():
        given = environment.get(name)
        if given is not None and (given.lower() in _FALSE) != (value in _FALSE):
            raise SettingError(
                f"{name} must be {value} for this model on this engine, got {given!r} (environment).",
                hint=f"unset {name}",
            )
        environment[name] = value
    return wanted
