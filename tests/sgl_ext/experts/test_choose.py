"""One choice on every rank: the fastest that passed everywhere, a forced one, and what stops the start."""

from __future__ import annotations

import multiprocessing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")

from sgl_ext.errors import ExpertBackendError, SettingError  # noqa: E402
from sgl_ext.experts.boot_choice import choose_for_model, rank_shape, wanted_backend  # noqa: E402
from sgl_ext.experts.choose import Vote, choose_backend  # noqa: E402
from sgl_ext.experts.self_check import Verdict  # noqa: E402


def verdict(name: str, *times: float, problem: str | None = None, version: str = "1") -> Verdict:
    sizes = ("6 tokens", "2048 tokens")
    return Verdict(
        name=name,
        present=True,
        problem=problem,
        error_bound=0.02,
        errors={},
        times_s=dict(zip(sizes, times, strict=False)),
        versions={name: version},
    )


def vote(rank: int, *verdicts: Verdict, wanted: str = "auto") -> Vote:
    return Vote(rank=rank, host=f"spark-{rank}", wanted=wanted, verdicts=verdicts)


def test_the_slowest_rank_decides_and_no_size_outweighs_another() -> None:
    """a is faster on rank 0 but slow on rank 1; c loses a little at 2048 tokens and wins much at 6."""
    votes = [
        vote(0, verdict("a", 0.001, 0.010), verdict("b", 0.002, 0.020), verdict("c", 0.0005, 0.022)),
        vote(1, verdict("a", 0.009, 0.010), verdict("b", 0.002, 0.020), verdict("c", 0.0005, 0.022)),
    ]
    assert choose_backend(votes) == "c"
    assert choose_backend([replace(v, verdicts=v.verdicts[:2]) for v in votes]) == "b"
    assert choose_backend(votes[:1]) == "a"


def test_a_forced_backend_is_used_or_refused() -> None:
    fine, broken = (
        verdict("a", 1, 1),
        verdict("b", 1, 1, problem="48 tokens: gives values that are not finite"),
    )
    assert choose_backend([vote(0, fine, broken, wanted="a")]) == "a"
    with pytest.raises(ExpertBackendError) as refused:
        choose_backend([vote(0, fine, broken, wanted="b")])
    assert refused.value.message == (
        "The expert backend b must pass its check since the recipe asks for it, got 48 tokens: gives values "
        "that are not finite (rank 0 on spark-0)."
    )
    assert "extensions.experts.backend" in refused.value.hint and refused.value.exit_code == 8
    with pytest.raises(
        ExpertBackendError, match=r"must be one of a, b or auto, got 'c' \(rank 0 on spark-0\)"
    ):
        choose_backend([vote(0, fine, broken, wanted="c")])


def test_a_rank_that_differs_is_named() -> None:
    same = [verdict("a", 1, 1), verdict("b", 1, 1)]
    failed = verdict("b", 1, 1, problem="raised RuntimeError: no kernel image")
    with pytest.raises(ExpertBackendError) as refused:
        choose_backend([vote(0, *same), vote(1, *same), vote(2, same[0], failed)])
    assert (
        "backend b, got passed with b 1 (rank 0 on spark-0) and raised RuntimeError: no kernel image with b 1"
        in (refused.value.message)
    )
    assert "(rank 2 on spark-2)" in refused.value.message
    with pytest.raises(ExpertBackendError, match="and passed with b 2"):
        choose_backend([vote(0, *same), vote(1, same[0], verdict("b", 1, 1, version="2"))])
    with pytest.raises(
        ExpertBackendError, match=r"'auto' \(rank 0 on spark-0\) and 'b' \(rank 1 on spark-1\)"
    ):
        choose_backend([vote(0, *same), vote(1, *same, wanted="b")])


def test_nothing_that_passes_is_refused_with_every_reason() -> None:
    bad = [verdict("a", problem="needs sm_90, on cpu"), verdict("b", problem="b is not installed")]
    with pytest.raises(ExpertBackendError, match=r"a: needs sm_90, on cpu; b: b is not installed"):
        choose_backend([vote(0, *bad)])


def test_what_is_asked_for() -> None:
    assert wanted_backend({}, "auto") == "auto"
    assert wanted_backend({}, "marlin") == "marlin"
    assert wanted_backend({}, "humming") is None  # SGLang's own, unchecked, as the operator asked
    assert wanted_backend({"SPARKCTL_EXPERT_BACKEND": "b12x"}, "auto") == "b12x"
    with pytest.raises(SettingError, match="must name one backend, got 'b12x' and 'marlin'"):
        wanted_backend({"SPARKCTL_EXPERT_BACKEND": "b12x"}, "marlin")
    with pytest.raises(SettingError, match=r"must be one of flashinfer_mxfp4, .*, got 'cutlas'"):
        wanted_backend({"SPARKCTL_EXPERT_BACKEND": "cutlas"}, "auto")


CONFIG = SimpleNamespace(
    n_routed_experts=8, hidden_size=128, moe_intermediate_size=128, num_experts_per_tok=2, swiglu_limit=10.0
)


@pytest.mark.parametrize(
    ("tp", "ep", "rank", "shape"),
    [
        (4, 1, 3, (384, 576, 0)),
        (4, 2, 3, (192, 1152, 192)),
        (4, 4, 3, (96, 2304, 288)),
        (3, 1, 2, (384, 768, 0)),
    ],
)
def test_shapes_of_the_real_model(tp: int, ep: int, rank: int, shape: tuple[int, int, int]) -> None:
    real = SimpleNamespace(
        n_routed_experts=384, hidden_size=5120, moe_intermediate_size=2304, num_experts_per_tok=6
    )
    parallel = SimpleNamespace(moe_ep_size=ep, moe_tp_size=tp // ep, moe_ep_rank=rank // (tp // ep))
    seen = rank_shape(real, parallel)
    assert (seen.num_experts, seen.width, seen.first_expert) == shape and seen.all_experts == 384


def vote_in_process(rank: int, tp: int, ep: int, wanted: str, store: Path, answers: Any) -> None:
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=tp)
    parallel = SimpleNamespace(
        moe_ep_size=ep, moe_tp_size=tp // ep, moe_ep_rank=rank // (tp // ep), tp_rank=rank
    )
    try:
        choice = choose_for_model(
            CONFIG,
            parallel,
            device=torch.device("cpu"),
            dtype=torch.float32,
            group=dist.group.WORLD,
            wanted="reference"
            if rank == 1 and wanted == "mixed"
            else "auto"
            if wanted == "mixed"
            else wanted,
        )
        answers.put((rank, choice.as_json()))
    except ExpertBackendError as error:
        answers.put((rank, error.message))
    dist.destroy_process_group()


def run_ranks(tp: int, ep: int, wanted: str, store: Path) -> list[Any]:
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    ranks = [
        context.Process(target=vote_in_process, args=(rank, tp, ep, wanted, store, answers))
        for rank in range(tp)
    ]
    for process in ranks:
        process.start()
    seen = sorted((answers.get(timeout=60) for _ in ranks), key=lambda item: item[0])
    for process in ranks:
        process.join(timeout=30)
        assert process.exitcode == 0
    return [answer for _, answer in seen]


def test_gloo_ranks_choose_together(tmp_path: Path) -> None:
    """Two ranks with two groups of experts, as in the engine: real checks, real times, one answer."""
    reports = run_ranks(2, 2, "auto", tmp_path / "store")
    assert reports[0]["chosen"] == reports[1]["chosen"]
    assert reports[0]["slowest_s"] == reports[1]["slowest_s"]
    verdicts = {item["name"]: item for item in reports[0]["verdicts"]}
    assert verdicts["reference"]["problem"] is None and verdicts["dequantised"]["problem"] is None
    assert verdicts["marlin"]["problem"] == "needs sm_90 or sm_12x, on cpu"


def test_gloo_ranks_that_were_asked_for_different_backends_all_stop(tmp_path: Path) -> None:
    seen = run_ranks(2, 1, "mixed", tmp_path / "store")
    assert seen[0] == seen[1] and "'auto' (rank 0" in seen[0] and "'reference' (rank 1" in seen[0]
