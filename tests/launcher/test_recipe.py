"""The recipe model, its rules, and `extends`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from launcher.compose_recipe import MAX_EXTENDS, compose_recipe, load_recipe, resolved_values
from launcher.config_problem import dotted
from launcher.engine_options import engine_options
from launcher.errors import ConfigError
from launcher.flag_rules import OWNED_FLAGS, TYPED_FLAGS
from launcher.merge_maps import merge_maps
from launcher.recipe import Recipe, Server

DIGEST = "registry.local/sglang@sha256:" + "a" * 64

MINIMAL = """\
schema_version: 1
name: mine
model: {path: tiny}
engine: {runtime: cpu}
parallelism: {nodes: 2, tp: 2}
"""


def make(**sections: Any) -> Recipe:
    base: dict[str, Any] = {
        "schema_version": 1,
        "name": "mine",
        "model": {"path": "tiny"},
        "engine": {"runtime": "venv"},
        "parallelism": {"nodes": 2, "tp": 2},
    }
    return Recipe.model_validate(merge_maps(base, sections))


def problems(**sections: Any) -> list[tuple[str, str, str]]:
    """(key, message, hint) of everything that is wrong."""
    with pytest.raises(ValidationError) as caught:
        make(**sections)
    (entry,) = caught.value.errors()
    return [(dotted(problem.at), problem.message, problem.hint) for problem in entry["ctx"]["problems"]]


def only_problem(**sections: Any) -> tuple[str, str, str]:
    (problem,) = problems(**sections)
    return problem


def write(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def refuse(path: Path) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        compose_recipe(path)
    return caught.value


def test_defaults_and_json_round_trip() -> None:
    recipe = make(
        server={"flags": {"device": "cpu", "cuda-graph-bs-decode": [1, 2], "enable-cache-report": True}}
    )
    assert recipe.server.host == "127.0.0.1"
    assert recipe.server.port == 30000
    assert recipe.limits.freeze_timeout_s == 10
    assert recipe.evidence.status == "not_run"
    assert recipe.extensions.engram.residence == "none"
    assert recipe.server.flags["cuda-graph-bs-decode"] == (1, 2)
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
    assert Recipe.model_validate_json(json.dumps(recipe.model_dump(mode="json"))) == recipe


def test_is_frozen() -> None:
    with pytest.raises(ValidationError):
        make().server.port = 1


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [("127.0.0.1", True), ("127.5.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("192.168.1.4", False), ("::", False), ("spark-a", False)],
)  # fmt: skip
def test_loopback_is_known_by_address(host: str, is_loopback: bool) -> None:
    assert Server(host=host).is_loopback is is_loopback


def test_served_name_falls_back_to_repo_then_path() -> None:
    assert make().served_name == "tiny"
    assert make(model={"repo": "a/b"}).served_name == "a/b"
    assert make(model={"repo": "a/b", "served_name": "c"}).served_name == "c"


def test_ranks_must_fill_the_gpus() -> None:
    key, message, hint = only_problem(parallelism={"nodes": 3, "gpus_per_node": 2, "tp": 5})
    assert key == "parallelism.tp"
    assert message == ("parallelism: tp * pp must be nodes * gpus_per_node = 3 * 2 = 6, got 5 * 1 = 5")
    assert hint == "set parallelism.tp (or nodes) so that both products agree"


def test_experts_must_divide_the_group() -> None:
    assert only_problem(parallelism={"nodes": 3, "tp": 3, "ep": 2})[:2] == (
        "parallelism.ep",
        "parallelism.ep must divide tp = 3, got 2",
    )


def test_pipeline_is_allowed_for_other_models_only() -> None:
    assert make(parallelism={"nodes": 4, "tp": 2, "pp": 2}).parallelism.pp == 2
    v41 = {"repo": "deepseek-ai/DeepSeek-V4.1-Flash"}
    key, message, _ = only_problem(model=v41, parallelism={"nodes": 4, "tp": 2, "pp": 2})
    assert key == "parallelism.pp"
    assert "must be 1 for DeepSeek-V4.1-Flash, got 2" in message


@pytest.mark.parametrize(
    "model", [{"repo": "deepseek-ai/DeepSeek-V4.1-Flash"}, {"path": "/srv/models/deepseek-v4.1-flash"}]
)
def test_v41_on_two_sparks_is_refused_with_the_arithmetic(model: dict[str, str]) -> None:
    key, message, hint = only_problem(model=model)
    assert key == "parallelism.nodes"
    assert "must be 3 or more" in message
    assert "145 GiB per rank against 121.7 GiB" in message
    assert "v41-flash-3x" in hint
    assert "286 GiB per rank" in only_problem(model=model, parallelism={"nodes": 1, "tp": 1})[1]
    assert make(model=model, parallelism={"nodes": 3, "tp": 3}).num_ranks == 3


def test_docker_needs_a_digest_and_others_no_image() -> None:
    assert make(engine={"runtime": "docker", "image": DIGEST}).engine.image == DIGEST
    for image in (None, "lmsysorg/sglang:latest", "x@sha256:abc"):
        key, message, _ = only_problem(engine={"runtime": "docker", "image": image})
        assert key == "engine.image"
        assert "must carry its digest" in message
    assert "must be absent with runtime venv" in only_problem(engine={"image": DIGEST})[1]


@pytest.mark.parametrize("path", ["$HOME/models", "../models", "~maria/models", "a\nb"])
def test_model_path_is_written_out(path: str) -> None:
    key, message, _ = only_problem(model={"path": path})
    assert key == "model.path"
    assert repr(path) in message


def test_revision_needs_a_repository() -> None:
    assert only_problem(model={"revision": "abc"})[0] == "model.revision"


@pytest.mark.parametrize(
    ("flag", "key"),
    [("tp-size", "parallelism.tp"), ("tensor-parallel-size", "parallelism.tp"), ("host", "server.host"),
     ("api-key", "server.api_key"), ("model-path", "model.path"), ("context-length", "server.context_length"),
     ("watchdog-timeout", "server.watchdog_timeout_s"), ("served-model-name", "model.served_name"),
     ("speculative-dspark-block-size", "extensions.dspark.block_size"), ("nnodes", "parallelism.nodes")],
)  # fmt: skip
def test_flag_that_doubles_a_typed_key_names_it(flag: str, key: str) -> None:
    at, message, hint = only_problem(server={"flags": {flag: "1"}})
    assert at == f"server.flags.{flag}"
    assert f"must not hold {flag}, which sparkctl writes itself" in message
    assert hint == f"set {key}"


@pytest.mark.parametrize("flag", ["node-rank", "dist-init-addr", "nccl-init-addr", "nccl-port"])
def test_flag_of_the_run_is_refused(flag: str) -> None:
    assert "sparkctl chooses it for each run" in only_problem(server={"flags": {flag: "1"}})[2]


@pytest.mark.parametrize(
    ("short", "owned"), [("nnode", "nnodes"), ("api-k", "api-key"), ("tensor-par", "tensor-")]
)
def test_abbreviation_of_an_owned_flag_is_refused(short: str, owned: str) -> None:
    assert f"--{owned}" in only_problem(server={"flags": {short: "1"}})[1]


@pytest.mark.parametrize(
    ("flags", "message", "hint"),
    [
        (
            {"disable-flashinfer-autotun": True},
            "server.flags must be options that this SGLang version has, got disable-flashinfer-autotun",
            "did you mean disable-flashinfer-autotune?",
        ),
        (
            {"--device": "cpu"},
            "server.flags names must be long options without the leading dashes, got '--device'",
            "write device",
        ),
        (
            {"page_size": 1},
            "server.flags names must be long options without the leading dashes, got 'page_size'",
            "write page-size",
        ),
        (
            {"disable-flashinfer-autotune": "yes"},
            "server.flags.disable-flashinfer-autotune must be true or false, got 'yes'",
            "",
        ),
        ({"page-size": [1, 2]}, "server.flags.page-size must be one value, not a list, got (1, 2)", ""),
        (
            {"page-size": True},
            "server.flags.page-size must be a value (this option is no switch; quote true or false when it "
            "is the value), got True",
            "",
        ),
        (
            {"enable-decoder-swa-bounded-replay": False},
            "server.flags.enable-decoder-swa-bounded-replay must be true or absent, got false",
            "to turn it off write no-enable-decoder-swa-bounded-replay: true",
        ),
    ],
)
def test_flags_are_checked_against_the_engine(flags: dict[str, Any], message: str, hint: str) -> None:
    assert only_problem(server={"flags": flags})[1:] == (message, hint)


def test_flag_choices_and_typed_choices_are_checked() -> None:
    assert only_problem(server={"dtype": "float23"})[2] == "did you mean float32?"
    _, message, hint = only_problem(server={"flags": {"load-format": "safetensor"}})
    assert "server.flags.load-format must be one of" in message
    assert hint == "did you mean safetensors?"


def test_another_engine_version_has_no_list_but_keeps_the_owned_flags() -> None:
    engine = {"runtime": "venv", "sglang_version": "0.5.99"}
    assert make(engine=engine, server={"flags": {"brand-new": 1}}).server.flags == {"brand-new": 1}
    assert only_problem(engine=engine, server={"flags": {"nnode": 1}})[2] == "set parallelism.nodes"


def test_owned_and_typed_flags_exist_in_the_engine() -> None:
    options = engine_options("0.5.23")
    assert options is not None
    assert [flag for flag in TYPED_FLAGS.values() if flag not in options] == []
    assert set(OWNED_FLAGS) - set(options) <= {"tp", "pp"}  # short forms of other engines
    assert set(TYPED_FLAGS) <= set(Server.model_fields)


def test_dspark_flags_belong_to_the_extension() -> None:
    key, _, hint = only_problem(server={"flags": {"speculative-algorithm": "DSPARK"}})
    assert key == "server.flags.speculative-algorithm"
    assert "extensions.dspark.enabled" in hint
    assert make(server={"flags": {"speculative-algorithm": "EAGLE"}}).server.flags
    both = {"dspark": {"enabled": True}}
    assert problems(extensions=both, server={"flags": {"speculative-algorithm": "EAGLE"}})


def test_engram_on_nvme_needs_packed_tables() -> None:
    assert only_problem(extensions={"engram": {"residence": "nvme"}})[0] == "extensions.engram.packed_path"
    assert only_problem(extensions={"dspark": {"width": "auto"}})[0] == "extensions.dspark.width"
    packed = {"engram": {"residence": "nvme", "packed_path": "v41/tp2"}}
    assert make(extensions=packed).extensions.engram.packed_path == "v41/tp2"
    make(extensions=packed, environment={"SGLANG_PLUGINS": "mine, sgl_ext"})
    key, message, _ = only_problem(extensions=packed, environment={"SGLANG_PLUGINS": "mine"})
    assert key == "environment.SGLANG_PLUGINS" and "must name sgl_ext" in message and "'mine'" in message


def test_expert_backends_must_agree() -> None:
    experts = {"experts": {"backend": "marlin"}}
    assert make(extensions=experts, server={"moe_runner_backend": "marlin"})
    key, _, hint = only_problem(extensions=experts, server={"moe_runner_backend": "triton"})
    assert (key, hint) == ("server.moe_runner_backend", "remove server.moe_runner_backend")


@pytest.mark.parametrize(
    ("name", "place"),
    [("NCCL_SOCKET_IFNAME", "fabric.socket_interface"), ("GLOO_SOCKET_IFNAME", "fabric.socket_interface"),
     ("SGLANG_HOST_IP", "fabric.address"), ("NCCL_IB_HCA", "fabric.hcas"),
     ("NCCL_IB_GID_INDEX", "fabric.gid_index")],
)  # fmt: skip
def test_variables_of_the_topology_point_there(name: str, place: str) -> None:
    key, message, hint = only_problem(environment={name: "x"})
    assert key == f"environment.{name}"
    assert "must be left to sparkctl" in message
    assert hint == f"set {place} of the node in the topology instead"


@pytest.mark.parametrize("name", ["A-B", "1A", "", "A B", "SPARKCTL_RUN_ID"])
def test_bad_variable_names_are_refused(name: str) -> None:
    assert only_problem(environment={name: "x"})


def test_variables_and_hosts_are_one_line() -> None:
    assert "must be one line" in only_problem(environment={"A": "a\nb"})[1]
    assert only_problem(server={"host": "0.0.0.0 --trust"})[0] == "server.host"


@pytest.mark.parametrize("name", ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_expandable_segments_are_refused_with_the_reason(name: str) -> None:
    value = "max_split_size_mb:64,expandable_segments : True"
    assert "NaN logits" in only_problem(environment={name: value})[1]
    assert make(environment={name: "expandable_segments:False"}).environment


def test_evidence_says_run_only_with_files() -> None:
    assert only_problem(evidence={"status": "run"})[0] == "evidence.status"
    assert (
        only_problem(evidence={"status": "run", "hardware": "GB10", "runs": ["/tmp/x"]})[0]
        == "evidence.runs[0]"
    )
    assert make(evidence={"status": "run", "hardware": "3x GB10", "runs": ["results/a"]}).evidence.runs


def test_all_problems_come_together() -> None:
    found = problems(parallelism={"nodes": 2, "tp": 3, "ep": 2}, environment={"NCCL_IB_HCA": "x", "A-B": "y"})
    assert [key for key, _, _ in found] == [
        "parallelism.tp",
        "parallelism.ep",
        "environment.NCCL_IB_HCA",
        "environment.A-B",
    ]


def test_cross_problem_carries_the_line_of_its_key(tmp_path: Path) -> None:
    path = write(tmp_path, "r.yaml", MINIMAL.replace("{nodes: 2, tp: 2}", "\n  nodes: 2\n  tp: 3"))
    error = refuse(path)
    assert error.message.endswith(f"got 3 * 1 = 3 ({path}:7:3).")
    assert error.hint


def test_flag_of_the_wrong_type_is_one_problem(tmp_path: Path) -> None:
    path = write(tmp_path, "r.yaml", MINIMAL + "server:\n  flags:\n    device: {a: b}\n")
    assert refuse(path).message == (
        f"server.flags.device must be text, a number, true, false or a list of these, got a map ({path}:8:5)."
    )


def test_extends_merges_key_by_key_and_keeps_origins(tmp_path: Path) -> None:
    base = write(
        tmp_path,
        "base.yaml",
        MINIMAL
        + "description: base\nserver:\n  port: 31000\n  flags: {device: cpu, cuda-graph-bs-decode: [1, 2]}\n"
        "environment: {A: a, B: b}\nevidence: {status: run, hardware: x, runs: [results/x]}\n",
    )
    path = write(
        tmp_path,
        "top.yaml",
        "schema_version: 1\nname: top\nextends: ./base.yaml\nserver:\n  flags: {cuda-graph-bs-decode: [4]}\n"
        "environment: {B: c}\n",
    )
    recipe, provenance = compose_recipe(path)
    assert recipe.server.port == 31000
    assert recipe.server.flags == {"device": "cpu", "cuda-graph-bs-decode": (4,)}
    assert recipe.environment == {"A": "a", "B": "c"}
    origins = {dotted(value.key): value.origin for value in resolved_values(recipe, provenance)}
    assert origins["server.port"] == f"{base}:8:3"
    assert origins["server.flags.cuda-graph-bs-decode"] == f"{path}:5:11"
    assert origins["environment.A"].startswith(f"{base}:")
    assert origins["environment.B"].startswith(f"{path}:")
    assert origins["limits.stop_timeout_s"] == "default"


def test_name_description_and_evidence_are_not_inherited(tmp_path: Path) -> None:
    evidence = "evidence: {status: run, hardware: x, runs: [results/x]}\n"
    base = write(tmp_path, "base.yaml", MINIMAL + "description: base\n" + evidence)
    path = write(tmp_path, "top.yaml", f"schema_version: 1\nname: top\nextends: {base}\n")
    recipe, _ = compose_recipe(path)
    assert recipe.evidence.status == "not_run"
    assert recipe.description == ""
    unnamed = write(tmp_path, "unnamed.yaml", f"schema_version: 1\nextends: {base}\n")
    assert "name must be set" in refuse(unnamed).message


def test_extends_takes_a_shipped_name(tmp_path: Path) -> None:
    path = write(
        tmp_path, "mine.yaml", "schema_version: 1\nname: mine\nextends: local\nserver: {port: 31000}\n"
    )
    recipe, _ = compose_recipe(path)
    assert (recipe.server.port, recipe.parallelism.tp) == (31000, 3)


def test_problem_in_a_base_names_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", MINIMAL + "server: {prt: 1}\n")
    path = write(tmp_path, "top.yaml", "schema_version: 1\nname: top\nextends: ./base.yaml\n")
    error = refuse(path)
    assert f"({base}:6:10)" in error.message
    assert error.hint == "did you mean port?"


def test_extends_refuses_loops_depth_and_strangers(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "name: a\nextends: ./b.yaml\n")
    b = write(tmp_path, "b.yaml", "name: b\nextends: ./a.yaml\n")
    message = refuse(tmp_path / "a.yaml").message
    assert (
        message == f"extends must not come back to the same file, got a.yaml -> b.yaml -> a.yaml ({b}:2:1)."
    )
    itself = write(tmp_path, "self.yaml", "extends: ./self.yaml\n")
    assert "must not come back" in refuse(itself).message
    for index in range(MAX_EXTENDS + 1):
        write(tmp_path, f"d{index}.yaml", f"extends: ./d{index + 1}.yaml\n")
    assert f"must chain at most {MAX_EXTENDS} files" in refuse(tmp_path / "d0.yaml").message
    for value, part in (
        ("locl", "must be a shipped name or a path, got 'locl'"),
        ("./gone.yaml", "must name an existing recipe, got './gone.yaml'"),
        ("[a]", "must be a shipped name or a path, got a list"),
        ("", "must be a shipped name or a path, got nothing"),
    ):
        path = write(tmp_path, "x.yaml", f"extends: {value}\n")
        error = refuse(path)
        assert part in error.message
        assert f"({path}:1:1)" in error.message


def test_deep_chain_within_the_limit_works(tmp_path: Path) -> None:
    for index in range(MAX_EXTENDS - 1):
        write(tmp_path, f"d{index}.yaml", f"name: d{index}\nextends: ./d{index + 1}.yaml\n")
    write(tmp_path, f"d{MAX_EXTENDS - 1}.yaml", MINIMAL)
    assert compose_recipe(tmp_path / "d0.yaml")[0].name == "d0"


def test_unknown_name_gets_the_closest_shipped_one() -> None:
    with pytest.raises(ConfigError) as caught:
        load_recipe("v41-flash-3")
    assert "did you mean v41-flash-3x?" in caught.value.hint


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
MAPS = st.dictionaries(st.text(max_size=2), JSON_VALUES, max_size=4)


@settings(max_examples=200, deadline=None)
@given(MAPS, MAPS, MAPS)
def test_merge_is_associative_and_the_upper_map_wins(a: Any, b: Any, c: Any) -> None:
    assert merge_maps(a, {}) == a
    assert merge_maps({}, a) == a
    assert merge_maps(a, a) == a
    for key, value in b.items():
        if not isinstance(value, dict):
            assert merge_maps(a, b)[key] == value
    if not _has_mixed(a, b, c):
        assert merge_maps(merge_maps(a, b), c) == merge_maps(a, merge_maps(b, c))


def _has_mixed(*maps: Any) -> bool:
    """True where one map has a map and another has none under the same key: order then matters by design."""
    for key in set().union(*maps):
        values = [entry[key] for entry in maps if key in entry]
        kinds = {isinstance(value, dict) for value in values}
        if len(kinds) > 1 or (kinds == {True} and _has_mixed(*values)):
            return True
    return False


@pytest.mark.parametrize("number", ["9" * 5000, "\u00b2"])
def test_a_number_that_int_does_not_take_is_one_clear_error(tmp_path: Path, number: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"schema_version: 1\nname: mine\nextends: local\nparallelism:\n  nodes: '{number}'\n")
    with pytest.raises(ConfigError, match="nodes"):
        load_recipe(str(path))
