"""DeepSeek-V4.1 in SGLang's own engine on the CPU, with real attention, against the reference and itself.

fp32 throughout, so that what differs is a mistake and not rounding. The long prompts have more compressed
positions than index_topk, so that selection and candidate blocks leave some out. Most tests use a model that
routes every token to all experts: there a rounding difference cannot choose other experts.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sgl_ext.tiny_model.v41 import build_v41
from sgl_ext.tiny_model.v41_sizes import CPU, V41Size
from tests.sgl_ext.engine_forks import EngineForks
from tests.sgl_ext.engine_variables import cpu_engine_variables

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]

# fp32 rounding alone gives 1e-4; a stored FP8 or FP4 value that falls to the other side of a tie gives a few
# thousandths, another pick among equal index scores a few hundredths. A wrong row or scale gives whole units.
CLOSE, TIE = 0.02, 0.25
Answers = list[dict[str, Any]]
Serve = Callable[..., Answers]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory, replace(CPU, num_experts_per_tok=CPU.n_routed_experts))


def build(tmp_path_factory: pytest.TempPathFactory, size: V41Size) -> Path:
    out = tmp_path_factory.mktemp("v41") / "model"
    build_v41(out, size, seed=1)
    return out


@pytest.fixture(scope="module")
def serve(model: Path, tmp_path_factory: pytest.TempPathFactory, engine_forks: EngineForks) -> Serve:
    def run(requests: list[dict[str, Any]], *, tp: int = 1, **engine: Any) -> Answers:
        return run_engine(engine_forks, model, tmp_path_factory.mktemp("run"), requests, tp=tp, **engine)

    return run


def run_engine(
    forks: EngineForks,
    model: Path,
    folder: Path,
    requests: list[dict[str, Any]],
    *,
    tp: int = 1,
    experts: str = "auto",
    sequence_parallel: str = "off",
    script: str = "run_engine.py",
    **engine: Any,
) -> Answers:
    job = {"engine": {"model_path": str(model), "tp_size": tp, "port": 41000 + 200 * tp, **engine}}
    (folder / "job.json").write_text(json.dumps(job | {"requests": requests}))
    (folder / "reports").mkdir()
    environment = cpu_engine_variables(tp, folder / "reports") | {
        "SPARKCTL_EXPERT_BACKEND": experts,
        "SPARKCTL_SEQUENCE_PARALLEL": sequence_parallel,
        "SPARKCTL_SEQUENCE_PARALLEL_FROM": "16",
    }
    fork = forks.start("tests.sgl_ext.run_engine", folder, environment, "job.json", "out.json")
    done = fork.wait(600)
    assert (folder / "out.json").is_file(), done.stderr[-4000:]
    splits = done.stderr.count("sgl_ext: a prefill of ")
    assert splits == (0 if sequence_parallel == "off" else tp), done.stderr[-2000:]
    for rank in range(tp):
        report = json.loads((folder / "reports" / f"rank-{rank:02d}.json").read_text())
        assert "cpu_v41" in report["hook_sets"]
        check_choice(report["details"]["experts"], experts, tp // engine.get("ep_size", 1))
    answers: Answers = json.loads((folder / "out.json").read_text())
    return answers


def check_choice(choice: dict[str, Any], wanted: str, ranks_of_a_group: int) -> None:
    """The expert backends were checked on this rank's shapes, and the fastest or the one asked for runs."""
    verdicts = {item["name"]: item for item in choice["verdicts"]}
    passed = [name for name, item in verdicts.items() if item["problem"] is None]
    assert choice["shape"]["width"] * ranks_of_a_group == CPU.moe_intermediate_size
    assert choice["chosen"] in passed
    if wanted != "auto":
        assert passed == [wanted]
        assert verdicts["dequantised"]["problem"] == f"not checked, since {wanted} is asked for"
        return
    assert passed == ["dequantised", "reference"]
    assert verdicts["marlin"]["problem"] == "needs sm_90 or sm_12x, on cpu"
    assert max(verdicts["dequantised"]["errors"].values()) < 1e-5  # fp32


def prompt(length: int, seed: int = 5) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 900) for _ in range(length)]


SHORT, LONG = prompt(40), prompt(1300, seed=6)
PREFIX = LONG[:900]
REQUESTS = [{"ids": SHORT, "new": 12, "last": 30}, {"ids": LONG, "new": 8, "last": 8}]


@pytest.fixture(scope="module")
def one_shot(serve: Serve) -> Answers:
    return serve(REQUESTS)


def distance(left: list[list[float]], right: list[list[float]]) -> float:
    assert len(left) == len(right) > 0
    return max(
        abs(a - b) for one, two in zip(left, right, strict=True) for a, b in zip(one, two, strict=True)
    )


def reference_rows(model: Path, request: dict[str, Any], answer: dict[str, Any]) -> list[list[float]]:
    """The reference's log-probabilities for the rows that the engine reported, prompt rows first."""
    import torch

    from sgl_ext.reference.v41_model import ReferenceModel

    ids = [*request["ids"], *answer["tokens"]]
    logits = ReferenceModel.load(model, torch.float32).logits(ids[:-1])
    rows: list[list[float]] = logits.log_softmax(-1)[-len(answer["prompt"] + answer["new"]) :].tolist()
    return rows


def test_logits_are_the_references(model: Path, one_shot: Answers) -> None:
    for request, answer, bound in zip(REQUESTS, one_shot, (CLOSE, TIE), strict=True):
        expected = reference_rows(model, request, answer)
        assert distance(answer["prompt"] + answer["new"], expected) < bound
        best = [row.index(max(row)) for row in expected[-len(answer["tokens"]) :]]
        assert best == answer["tokens"]


def test_chosen_experts_are_the_references(
    tmp_path_factory: pytest.TempPathFactory, engine_forks: EngineForks
) -> None:
    """Two of twelve experts a token. Rounding may choose among near equals, so not every row agrees."""
    model = build(tmp_path_factory, CPU)
    (answer,) = run_engine(engine_forks, model, tmp_path_factory.mktemp("run"), REQUESTS[:1])
    expected = reference_rows(model, REQUESTS[0], answer)
    rows = zip(answer["prompt"] + answer["new"], expected, strict=True)
    close = [distance([seen], [wanted]) < CLOSE for seen, wanted in rows]
    assert sum(close) >= 0.8 * len(close)


@pytest.mark.parametrize("tp", [2, 3, 4])
def test_ranks_agree_with_one(serve: Serve, one_shot: Answers, tp: int) -> None:
    """2 ranks run the reference's experts, 3 draft (DSpark, padded heads in the draft stages too), 4 have two
    groups of experts. All split the rows of prefill, 1300 tokens unevenly: 2 in the layers that SGLang has
    for CUDA, 4 with the sums of an all-reduce. None of it may change a thing.
    """
    layouts: dict[int, dict[str, Any]] = {
        2: {
            "experts": "reference",
            "sequence_parallel": "prefill",
            "script": "run_cuda_layers.py",
        },
        3: {
            "sequence_parallel": "prefill",
            "speculative_algorithm": "DSPARK",
            "speculative_dspark_block_size": 5,
        },
        4: {"ep_size": 2, "sequence_parallel": "prefill-exact"},
    }
    ranks = serve(REQUESTS, tp=tp, **layouts[tp])
    for single, answer, bound in zip(one_shot, ranks, (CLOSE, TIE), strict=True):
        assert answer["tokens"] == single["tokens"]
        assert distance(answer["new"], single["new"]) < bound
        assert distance(answer["prompt"], single["prompt"]) < bound


def test_chunked_prefill_and_prefix_hits_agree_with_one_shot(serve: Serve, one_shot: Answers) -> None:
    """The KV, index keys and half-finished pairs a chunk leaves must be what the next chunk needs."""
    first = {"ids": PREFIX, "new": 1}
    _, after_prefix, hit = serve([first, REQUESTS[1], REQUESTS[1]], chunked_prefill_size=256)
    (cut,) = serve([REQUESTS[1]], chunked_prefill_size=512)
    assert after_prefix["cached"] >= 768 and hit["cached"] >= 1024 and cut["cached"] == 0
    for answer in (cut, hit, after_prefix):
        assert answer["tokens"] == one_shot[1]["tokens"]
        assert distance(answer["new"], one_shot[1]["new"]) < TIE
