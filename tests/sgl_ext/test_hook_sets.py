from dataclasses import replace
from pathlib import Path

import pytest

from sgl_ext.errors import SettingError
from sgl_ext.hook_sets import HookSet, choose_hook_sets
from sgl_ext.settings import Settings

V41 = {"model_type": "deepseek_v41", "text_config": {"o_groups": 8}}


def settings(*, cpu_engine: bool = False, engram_dir: Path | None = None) -> Settings:
    return Settings(cpu_engine=cpu_engine, report_dir=None, engram_dir=engram_dir)


def test_other_models_get_no_hooks() -> None:
    assert choose_hook_sets(settings(cpu_engine=True), {"model_type": "qwen3"}, 3) == ()
    assert choose_hook_sets(settings(cpu_engine=True), None, 3) == ()


def test_v41_on_the_cpu_engine() -> None:
    assert choose_hook_sets(settings(cpu_engine=True), V41, 2) == (HookSet.CPU_V41, HookSet.EXPERTS)
    assert choose_hook_sets(settings(), V41, 2) == (HookSet.EXPERTS, HookSet.GPU_EXPERTS)


def test_heads_are_balanced_only_where_groups_do_not_divide() -> None:
    assert HookSet.BALANCED_HEADS in choose_hook_sets(settings(), V41, 3)
    assert HookSet.BALANCED_HEADS not in choose_hook_sets(settings(), V41, 4)


def test_a_spark_gets_what_stands_between_it_and_the_stock_wheel() -> None:
    assert HookSet.SM12X in choose_hook_sets(settings(), V41, 3, capability=(12, 1))
    assert HookSet.SM12X not in choose_hook_sets(settings(), V41, 3, capability=(9, 0))


def test_sequence_parallelism_is_off_unless_asked_for() -> None:
    assert HookSet.SEQUENCE_PARALLEL not in choose_hook_sets(settings(cpu_engine=True), V41, 2)
    asked = replace(settings(cpu_engine=True), sequence_parallel=True)
    assert HookSet.SEQUENCE_PARALLEL in choose_hook_sets(asked, V41, 2)
    on_gpu = choose_hook_sets(replace(asked, cpu_engine=False), V41, 2)
    assert HookSet.GPU_SEQUENCE_PARALLEL in on_gpu and HookSet.SEQUENCE_PARALLEL not in on_gpu
    with pytest.raises(SettingError, match=r"must be DeepSeek-V4\.1 .*rows are split"):
        choose_hook_sets(asked, {"model_type": "qwen3"}, 2)


def test_row_store_needs_a_v41_folder(tmp_path: Path) -> None:
    assert choose_hook_sets(settings(engram_dir=tmp_path), V41, 4)[-1] is HookSet.ROW_STORE
    with pytest.raises(SettingError, match="got model_type 'qwen3'"):
        choose_hook_sets(settings(engram_dir=tmp_path), {"model_type": "qwen3"}, 4)
    with pytest.raises(SettingError, match=r"got no local config\.json"):
        choose_hook_sets(settings(engram_dir=tmp_path), None, 4)
