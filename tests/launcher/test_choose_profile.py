"""Profiles: values over the recipe's own, refused by name, checked even when nobody asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.compose_recipe import compose_recipe, load_recipe
from launcher.errors import ConfigError

RECIPE = """schema_version: 1
name: mine
extends: local
profile: quick
profiles:
  quick:
    server:
      max_running_requests: 2
  slow:
    server:
      max_running_requests: 7
    environment:
      NCCL_DEBUG: INFO
"""


def write(folder: Path, text: str = RECIPE) -> Path:
    path = folder / "mine.yaml"
    path.write_text(text)
    return path


def test_the_own_profile_is_in_effect_and_another_can_be_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path)
    own, origins = compose_recipe(path)
    assert (own.profile, own.server.max_running_requests) == ("quick", 2)
    assert str(origins["server", "max_running_requests"]).endswith("mine.yaml:8:7")
    slow, _ = compose_recipe(path, profile="slow")
    assert (slow.profile, slow.server.max_running_requests) == ("slow", 7)
    assert slow.environment["NCCL_DEBUG"] == "INFO" and "NCCL_DEBUG" not in own.environment
    assert slow.environment["SGLANG_USE_CPU_ENGINE"] == "1"  # merged, not replaced


def test_an_unknown_profile_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_recipe(write(tmp_path), profile="slwo")
    assert "must be one of recipe mine's (quick, slow), got 'slwo'" in caught.value.message
    assert caught.value.hint == "did you mean slow?"
    with pytest.raises(ConfigError, match=r"recipe local's \(none\), got 'batch'"):
        load_recipe("local", profile="batch")
    wrong = write(tmp_path, RECIPE.replace("profile: quick", "profile: fast", 1))
    with pytest.raises(ConfigError, match=r"got 'fast' \(.*mine\.yaml:4:1\)"):
        compose_recipe(wrong)


def test_a_profile_that_nobody_asked_for_is_checked_too(tmp_path: Path) -> None:
    text = RECIPE.replace("max_running_requests: 7", "max_runing_requests: 7")
    with pytest.raises(ConfigError, match="max_runing_requests"):
        compose_recipe(write(tmp_path, text))


@pytest.mark.parametrize("key", ["model", "parallelism", "name", "evidence"])
def test_a_profile_serves_the_same_model_on_the_same_nodes(tmp_path: Path, key: str) -> None:
    text = RECIPE.replace("    environment:\n      NCCL_DEBUG: INFO", f"    {key}: {{}}")
    with pytest.raises(ConfigError, match=rf"profiles\.slow must hold only .*, got {key}: a profile"):
        compose_recipe(write(tmp_path, text))


def test_profiles_are_inherited_key_by_key() -> None:
    sequence, _ = load_recipe("v41-flash-4x-sp", profile="batch")
    assert sequence.extensions.dspark.block_size == 3  # of v41-flash-4x
    assert sequence.server.flags["schedule-policy"] == "lpm"  # of base/spark-base
    assert sequence.parallelism.sequence_parallel == "prefill"
