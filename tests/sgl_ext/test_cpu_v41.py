"""DeepSeek-V4.1 in SGLang's own engine on the CPU, with real attention, against the reference and itself.

fp32 throughout, so that what differs is a mistake and not rounding. The long prompts have more compressed
positions than index_topk, so that selection and candidate blocks leave some out.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]

# Rounding alone gives about 1e-4. A top-k or FP4 tie that falls the other way moves a log-probability by a few
# hundredths; a wrong row, position or scale moves it by whole units.
CLOSE, TIE = 2e-3, 0.25
Answers = list[dict[str, Any]]
Serve = Callable[..., Answers]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from sgl_ext.tiny_model.v41 import build_v41
    from sgl_ext.tiny_model.v41_sizes import CPU

    out = tmp_path_factory.mktemp("v41") / "model"
    build_v41(out, CPU, seed=1)
    return out


@pytest.fixture(scope="module")
def serve(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Serve:
    def run(requests: list[dict[str, Any]], *, tp: int = 1, **engine: Any) -> Answers:
        return run_engine(model, tmp_path_factory.mktemp("run"), requests, tp=tp, **engine)

    return run


def run_engine(
    model: Path, folder: Path, requests: list[dict[str, Any]], *, tp: int = 1, **engine: Any
) -> Answers:
    job = {"engine": {"model_path": str(model), "tp_size": tp, "port": 41000 + 200 * tp, **engine}}
    (folder / "job.json").write_text(json.dumps(job | {"requests": requests}))
    (folder / "reports").mkdir()
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(tp)),
        "SPARKCTL_REPORT_DIR": str(folder / "reports"),
    }
    script = Path(__file__).with_name("run_engine.py")
    done = subprocess.run(
        [sys.executable, str(script), "job.json", "out.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (folder / "out.json").is_file(), done.stderr[-4000:]
    for rank in range(tp):
        report = json.loads((folder / "reports" / f"rank-{rank:02d}.json").read_text())
        assert "cpu_v41" in report["hook_sets"]
    answers: Answers = json.loads((folder / "out.json").read_text())
    return answers


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


def test_logits_are_the_references(model: Path, one_shot: Answers) -> None:
    import torch

    from sgl_ext.reference.v41_model import ReferenceModel

    reference = ReferenceModel.load(model, torch.float32)
    for request, answer, bound in zip(REQUESTS, one_shot, (CLOSE, TIE), strict=True):
        ids = [*request["ids"], *answer["tokens"]]
        expected = reference.logits(ids[:-1]).log_softmax(-1)
        start, end = len(request["ids"]), len(ids) - 1
        assert distance(answer["new"], expected[start - 1 : end].tolist()) < bound
        rows = len(answer["prompt"])
        assert distance(answer["prompt"], expected[start - 1 - rows : start - 1].tolist()) < bound
        assert expected[start - 1 : end].argmax(-1).tolist() == answer["tokens"]


@pytest.mark.parametrize("tp", [2, 4])
def test_ranks_agree_with_one(serve: Serve, one_shot: Answers, tp: int) -> None:
    for single, answer, bound in zip(one_shot, serve(REQUESTS, tp=tp), (CLOSE, TIE), strict=True):
        assert answer["tokens"] == single["tokens"]
        assert distance(answer["new"], single["new"]) < bound
        assert distance(answer["prompt"], single["prompt"]) < bound


def test_chunked_prefill_and_prefix_hits_agree_with_one_shot(serve: Serve, one_shot: Answers) -> None:
    """The KV, index keys and half-finished pairs a chunk leaves must be what the next chunk needs."""
    first = {"ids": PREFIX, "new": 1}
    # 257 leaves every second chunk border inside a pair of the ratio-2 compressor.
    cut, _, hit = serve([REQUESTS[1], first, REQUESTS[1]], chunked_prefill_size=257)
    _, after_prefix = serve([first, REQUESTS[1]])
    assert hit["cached"] >= 1024 and after_prefix["cached"] >= 768 and cut["cached"] == 0
    for answer in (cut, hit, after_prefix):
        assert answer["tokens"] == one_shot[1]["tokens"]
        assert distance(answer["new"], one_shot[1]["new"]) < TIE
