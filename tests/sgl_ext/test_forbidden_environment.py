"""A variable that must not reach an engine on sm_12x ends the start by name; its harmless value does not."""

from __future__ import annotations

import pytest

from launcher.forbidden_settings import VARIABLES
from sgl_ext.errors import SettingError
from sgl_ext.forbidden_environment import FORBIDDEN, refuse_forbidden
from sgl_ext.hook_sets import HookSet

# Name -> a value that does harm, one that does not.
VALUES = {
    "PYTORCH_CUDA_ALLOC_CONF": ("a:1,expandable_segments: true", "expandable_segments:False"),
    "PYTORCH_ALLOC_CONF": ("expandable_segments:True", "max_split_size_mb:64"),
    "NCCL_IB_USE_INLINE": ("1", "0"),
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": ("2", "0"),
    "SGLANG_OPT_SM120_DIRECT_SWA_KV": ("1", "false"),
    "SGLANG_DSV4_KV_LAYOUT": ("v41", "auto"),
    "SGLANG_DSV4_COMPRESSED_KV_LAYOUT": ("fp8", "AUTO"),
    "SGLANG_OPT_FP8_WO_A_GEMM": ("true", "0"),
    "SGLANG_OPT_USE_TOPK_V2": ("1", "0"),
    "SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH": ("1", "0"),
    "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH": ("1", "0"),
    "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE": ("1", "0"),
}
SETS = {item.name: hook_set for hook_set, items in FORBIDDEN.items() for item in items}


def test_every_forbidden_variable_has_a_case_here() -> None:
    assert set(SETS) == set(VALUES)


@pytest.mark.parametrize("name", VALUES)
def test_variable_is_refused_by_name_where_it_does_harm(name: str) -> None:
    bad, good = VALUES[name]
    with pytest.raises(SettingError, match=name) as refused:
        refuse_forbidden({name: bad}, (HookSet.EXPERTS, SETS[name]))
    assert repr(bad) in refused.value.message and refused.value.hint
    refuse_forbidden({name: good}, (SETS[name],))
    refuse_forbidden({name: bad}, (HookSet.EXPERTS, HookSet.GPU_EXPERTS))  # another GPU
    refuse_forbidden({}, (SETS[name],))


def test_what_an_engine_on_a_spark_refuses_a_recipe_is_refused_too() -> None:
    """A refusal before the start is better than one minutes into it."""
    in_recipes = {item.name: item for item in VARIABLES}
    for item in FORBIDDEN[HookSet.SM12X]:
        assert in_recipes[item.name].matches(VALUES[item.name][0]), item.name
