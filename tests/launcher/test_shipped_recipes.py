"""Every shipped file is valid, honest about its evidence, and found in an install."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.compose_recipe import compose_recipe, load_recipe
from launcher.errors import ConfigError
from launcher.explain_problems import known_paths
from launcher.find_recipe import find_recipe, shipped_directory, shipped_recipes, shipped_topologies
from launcher.fit.choose_chunk import with_chosen_chunk
from launcher.fit.fit_recipe import WhatIf, can_fit, fit_recipe
from launcher.fit.model_shape import shipped_shape
from launcher.read_topology import find_topology, read_topology
from launcher.recipe import Recipe
from launcher.recipe_rules import is_v41
from launcher.topology import Links, Node, local_topology

REPOSITORY = Path(__file__).parents[2]
RECIPES = shipped_recipes()
TOPOLOGIES = shipped_topologies()
SPARK_RECIPES = [name for name in RECIPES if not name.startswith("local")]
NCCL_BUFFERS = {
    "NCCL_BUFFSIZE": "1048576",
    "NCCL_LL128_BUFFSIZE": "262144",
    "NCCL_PROTO": "^LL128",
    "NCCL_MAX_NCHANNELS": "8",
}


def test_the_promised_recipes_are_there() -> None:
    promised = {"local", "local-1x", "local-2x", "local-4x", "v4-flash-2x", "v41-flash-3x", "v41-flash-4x"}
    promised |= {"v41-flash-4x-sp", "v41-flash-8x", "local-v41", "local-v41-dspark"}
    assert promised <= set(RECIPES)
    for name in SPARK_RECIPES:
        assert set(compose_recipe(RECIPES[name])[0].profiles) >= {"interactive", "batch"}


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_is_valid_and_named_after_its_file(name: str) -> None:
    recipe, provenance = compose_recipe(RECIPES[name])
    assert recipe.name == name
    assert recipe.description
    assert recipe.parallelism.tp == recipe.num_ranks
    assert {Path(origin.file).parts[0] for origin in provenance.values()}


@pytest.mark.parametrize("name", RECIPES)
def test_evidence_is_said_in_the_file_itself(name: str) -> None:
    recipe, provenance = compose_recipe(RECIPES[name])
    assert Path(provenance["evidence", "status"].file).name == f"{name}.yaml"
    assert recipe.evidence.notes
    for run in recipe.evidence.runs:
        assert (REPOSITORY / run).exists()


@pytest.mark.parametrize("name", SPARK_RECIPES)
def test_spark_recipes_carry_what_a_gb10_needs(name: str) -> None:
    recipe, _ = compose_recipe(RECIPES[name])
    assert recipe.engine.runtime == "venv"
    assert recipe.environment.items() >= NCCL_BUFFERS.items()
    assert recipe.environment["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:False"
    assert recipe.server.flags["disable-flashinfer-autotune"] is True
    assert recipe.server.is_loopback
    assert "not run on GB10" in recipe.evidence.notes
    assert recipe.evidence.status == "not_run"


@pytest.mark.parametrize("name", SPARK_RECIPES)
def test_interactive_interleaves_and_batch_does_not(name: str) -> None:
    """Shorter prompts join the chunks of a longer one, and decode rounds lie between chunks."""
    recipe, _ = compose_recipe(RECIPES[name])
    assert recipe.profile == "interactive"
    flags = recipe.server.flags
    assert (flags["prefill-decode-interval"], flags["schedule-policy"]) == (4, "shortest-prefill-first")
    batch, _ = compose_recipe(RECIPES[name], profile="batch")
    assert batch.profile == "batch"
    flags = batch.server.flags
    assert (flags["prefill-decode-interval"], flags["schedule-policy"]) == (0, "lpm")


@pytest.mark.parametrize("name", [name for name in SPARK_RECIPES if name.startswith("v41")])
@pytest.mark.parametrize("profile", ["interactive", "batch"])
def test_auto_takes_the_largest_safe_chunk(name: str, profile: str) -> None:
    recipe, _ = compose_recipe(RECIPES[name], profile=profile)
    assert recipe.server.chunked_prefill_size == "auto"
    planned, why = with_chosen_chunk(recipe)
    fit = fit_recipe(planned, shipped_shape("v41-flash"))
    counted = fit_recipe(recipe, shipped_shape("v41-flash")).settings.pool.chunk_tokens
    assert planned.server.chunked_prefill_size == fit.safe_chunk_tokens == counted
    assert f"chunked_prefill_size {fit.safe_chunk_tokens} (auto): " in why
    # A page more is refused or warned about by fit itself.
    assert isinstance(planned.server.chunked_prefill_size, int)
    more = WhatIf(chunk_tokens=planned.server.chunked_prefill_size + 256)
    found = fit_recipe(recipe, shipped_shape("v41-flash"), more)
    assert {problem.check for problem in found.refusals} & {"headroom", "chunk-times-context"}


def test_auto_is_refused_where_memory_is_not_known() -> None:
    recipe, _ = compose_recipe(RECIPES["v4-flash-2x"])
    server = recipe.server.model_copy(update={"chunked_prefill_size": "auto"})
    with pytest.raises(ConfigError, match="must be a number in recipe v4-flash-2x, got auto"):
        with_chosen_chunk(recipe.model_copy(update={"server": server}))


@pytest.mark.parametrize("name", SPARK_RECIPES)
def test_indexer_transient_stays_in_memory(name: str) -> None:
    """About 14 B x chunk x prefix: 2e8 ran on three Sparks. On four the memory rule decides: 1.35e9 pairs
    are 19 GB, and 2 GB stay."""
    recipe, _ = compose_recipe(RECIPES[name])
    planned, _ = with_chosen_chunk(recipe)
    assert isinstance(planned.server.chunked_prefill_size, int)
    assert recipe.server.context_length is not None
    product = planned.server.chunked_prefill_size * recipe.server.context_length
    assert product <= (1.35e9 if recipe.nodes_per_group == 4 else 2.02e8)


@pytest.mark.parametrize("name", SPARK_RECIPES)
def test_every_recipe_fits_the_sparks_it_is_written_for(name: str) -> None:
    recipe, _ = compose_recipe(RECIPES[name])
    if not can_fit(recipe):
        assert not is_v41(recipe)
        return
    fit = fit_recipe(recipe, shipped_shape("v41-flash"))
    assert [f"{item.check}: {item.message}" for item in fit.refusals] == []
    assert fit.settings.split.tp == recipe.num_ranks
    assert fit.safe_chunk_tokens is not None
    assert fit.settings.pool.chunk_tokens <= fit.safe_chunk_tokens


def test_v41_recipes_use_its_engram_and_draft() -> None:
    for name in SPARK_RECIPES:
        recipe, _ = compose_recipe(RECIPES[name])
        if not is_v41(recipe):
            continue
        assert recipe.extensions.engram.residence == "nvme"
        assert recipe.extensions.engram.packed_path == f"v41-flash/tp{recipe.parallelism.tp}"
        assert recipe.extensions.dspark.enabled
        assert recipe.extensions.dspark.verify != "compact"
        assert recipe.server.flags["min-free-slots-delay"] == 1
        assert ("-sp" in name) == (recipe.parallelism.sequence_parallel == "prefill")


@pytest.mark.parametrize(
    ("name", "num_nodes"), [("local", 3), ("local-1x", 1), ("local-2x", 2), ("local-4x", 4)]
)
def test_local_recipes_fit_the_embedded_topology(name: str, num_nodes: int) -> None:
    recipe, _ = load_recipe(name)
    assert recipe.parallelism.nodes == num_nodes == len(local_topology(num_nodes).nodes)
    assert recipe.engine.runtime == "cpu"
    assert recipe.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert recipe.server.flags == {"device": "cpu"}


@pytest.mark.parametrize("name", ["local-v41", "local-v41-dspark"])
def test_the_small_v41_runs_as_its_engine_needs(name: str) -> None:
    recipe, _ = load_recipe(name)
    assert recipe.extensions.dspark.enabled == name.endswith("dspark")
    assert (recipe.engine.runtime, recipe.parallelism.tp, recipe.server.dtype) == ("cpu", 3, "float32")
    assert recipe.extensions.engram.residence == "nvme"
    assert recipe.server.attention_backend == "dsv4"
    assert recipe.server.chunked_prefill_size and recipe.server.chunked_prefill_size % 256 == 0
    assert recipe.server.flags["cuda-graph-backend-decode"] == "disabled"
    assert recipe.server.flags["cuda-graph-backend-prefill"] == "disabled"


def test_bases_are_no_recipes() -> None:
    bases = sorted((shipped_directory() / "base").glob("*.yaml"))
    assert [path.name for path in bases] == ["spark-base.yaml", "v41-flash-base.yaml"]
    for path in bases:
        assert path.stem not in RECIPES
        with pytest.raises(ConfigError, match="parallelism must be set"):
            compose_recipe(path)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topology_examples_are_valid(name: str) -> None:
    topology, _ = read_topology(find_topology(name))
    assert topology.nodes


def test_every_layout_has_an_example() -> None:
    layouts = {read_topology(path)[0].links.layout for path in TOPOLOGIES.values()}
    assert layouts == {"pair", "triangle", "switch", "ring", "loopback"}


def test_local_example_is_the_embedded_default() -> None:
    assert read_topology(find_topology("local-3"))[0] == local_topology(3)


def test_files_are_ascii_and_never_expand_the_environment() -> None:
    for path in shipped_directory().rglob("*.yaml"):
        text = path.read_text(encoding="ascii")
        assert "\t" not in text
        assert not re.search(r"\$[A-Za-z{]", text)


def _yaml_block(page: str) -> str:
    (block,) = re.findall(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / page).read_text(), re.DOTALL)
    assert isinstance(block, str)
    return block


def test_examples_of_the_manual_are_valid(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(_yaml_block("recipes.md"))
    recipe, _ = compose_recipe(tmp_path / "recipe.yaml")
    assert recipe.server.context_length == 131072
    (tmp_path / "topology.yaml").write_text(_yaml_block("topologies.md"))
    topology, _ = read_topology(tmp_path / "topology.yaml")
    assert topology.nodes[1].ssh.user == "maria"


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("recipes.md", known_paths(Recipe)),
        ("topologies.md", [f"links.{key}" for key in known_paths(Links)] + known_paths(Node)),
    ],
)
def test_the_manual_explains_every_key(page: str, keys: list[str]) -> None:
    text = (REPOSITORY / "docs" / page).read_text()
    leaves = [key for key in keys if not any(other.startswith(f"{key}.") for other in keys)]
    assert [key for key in leaves if f"`{key}`" not in text] == []


def test_every_recipe_is_in_the_manual() -> None:
    text = (REPOSITORY / "docs" / "recipes.md").read_text()
    assert [name for name in RECIPES if f"`{name}`" not in text] == []


def test_unknown_topology_lists_the_examples() -> None:
    with pytest.raises(ConfigError) as caught:
        find_topology("mine")
    assert "spark-3-triangle" in caught.value.hint
    assert "./mine.yaml" in caught.value.hint


def test_a_path_is_no_shipped_name(tmp_path: Path) -> None:
    assert find_recipe("local.yaml") == Path("local.yaml")
    assert find_recipe("./local", relative_to=tmp_path) == tmp_path / "local"
    assert find_recipe("~/x.yaml").is_absolute()


def test_recipes_are_found_in_an_installed_copy(tmp_path: Path) -> None:
    """The data files that pyproject.toml names reach the wheel: build one and read a recipe out of it."""
    pytest.importorskip("setuptools", minversion="77")
    build = (
        "import sys, setuptools; sys.argv = ['setup.py', '-q', 'build_py', '-d', sys.argv[1]]; "
        "setuptools.setup()"
    )
    source = tmp_path / "source"
    source.mkdir()
    for name in ("pyproject.toml", "LICENSE", "launcher", "recipes"):
        (source / name).symlink_to(REPOSITORY / name)
    (source / "README.md").write_text("x")
    target = tmp_path / "installed"
    subprocess.run([sys.executable, "-c", build, str(target)], cwd=source, check=True, timeout=120)
    code = (
        "import json; from launcher.compose_recipe import load_recipe; from launcher.find_recipe import *; "
        "print(json.dumps([load_recipe('v41-flash-4x-sp', profile='batch')[0].name, len(shipped_recipes()), "
        "len(shipped_topologies()), str(shipped_directory())]))"
    )
    environment = {**os.environ, "PYTHONPATH": str(target)}
    answer = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    assert json.loads(answer.stdout) == [
        "v41-flash-4x-sp",
        len(RECIPES),
        len(TOPOLOGIES),
        str(target / "recipes"),
    ]
