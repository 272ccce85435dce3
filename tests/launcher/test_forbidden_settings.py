"""Each setting that is known to do harm is refused by name, with its reason; its harmless value is not."""

from __future__ import annotations

import pytest

from launcher.compose_recipe import load_recipe
from launcher.config_problem import ConfigProblem
from launcher.engine_options import engine_options
from launcher.environment_rules import environment_problems
from launcher.forbidden_settings import SPARK_BACKENDS, SPARK_OPTIONS, VARIABLES, Forbidden
from launcher.recipe import Recipe
from launcher.recipe_rules import recipe_problems

# Name -> a value that does harm, one that does not (None: there is none).
VALUES: dict[str, tuple[str, str | None]] = {
    "PYTORCH_CUDA_ALLOC_CONF": ("a:1,expandable_segments: true", "expandable_segments:False"),
    "PYTORCH_ALLOC_CONF": ("expandable_segments:True", "expandable_segments:False"),
    "SGLANG_RUST_BUILD_MODE": ("auto", "never"),
    "LD_LIBRARY_PATH": ("/usr/lib", None),
    "NCCL_IB_USE_INLINE": ("1", "0"),
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": ("1", "0"),
    "SGLANG_DSV4_FP4_DEQUANT": ("true", "0"),
    "SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH": ("1", "0"),
    "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH": ("1", "0"),
    "SGLANG_OPT_SM120_DIRECT_SWA_KV": ("1", "0"),
    "SGLANG_DSV4_KV_LAYOUT": ("v41", "auto"),
    "SGLANG_DSV4_COMPRESSED_KV_LAYOUT": ("fp4", "auto"),
    "SGLANG_OPT_FP8_WO_A_GEMM": ("1", "0"),
    "SGLANG_OPT_USE_TOPK_V2": ("1", "0"),
}


def test_every_forbidden_variable_has_a_case_here() -> None:
    assert {item.name for item in VARIABLES} == set(VALUES)


@pytest.mark.parametrize("name", VALUES)
def test_variable_is_refused_with_its_reason(name: str) -> None:
    bad, good = VALUES[name]
    (problem,) = environment_problems({name: bad})
    item = next(item for item in VARIABLES if item.name == name)
    assert problem.at == ("environment", name)
    assert item.reason in problem.message and bad in problem.message and problem.hint
    assert good is None or environment_problems({name: good}) == []


@pytest.mark.parametrize("item", SPARK_OPTIONS, ids=lambda item: item.name)
def test_option_is_refused_on_sparks_and_left_to_the_cpu_engine(item: Forbidden) -> None:
    name = item.name
    options = engine_options("0.5.23")
    assert options is not None and name in options
    spark, cpu = (_with_flag(load_recipe(recipe)[0], name) for recipe in ("v41-flash-3x", "local"))
    (problem,) = recipe_problems(spark)
    assert problem.at == ("server", "flags", name) and item.reason in problem.message
    assert recipe_problems(cpu) == []


@pytest.mark.parametrize("item", SPARK_BACKENDS, ids=lambda item: item.name)
def test_backend_is_refused_on_sparks(item: Forbidden) -> None:
    name, bad = item.name, item.bad
    recipe = load_recipe("v41-flash-3x")[0]
    changed = recipe.model_copy(update={"server": recipe.server.model_copy(update={name: bad})})
    found: list[ConfigProblem] = recipe_problems(changed)
    assert [problem.at for problem in found] == [("server", name)]


def _with_flag(recipe: Recipe, name: str) -> Recipe:
    server = recipe.server.model_copy(update={"flags": {**recipe.server.flags, name: True}})
    return recipe.model_copy(update={"server": server})
