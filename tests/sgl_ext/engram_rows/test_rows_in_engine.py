"""SGLang's own engine on the CPU: Engram rows from packed files against its tables in memory.

Same kernels, same order of sums: tokens and every log-probability must be the same to the bit.
"""

import importlib.util
import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engram.table_format import table_file_name
from tests.sgl_ext.engine_forks import EngineForks
from tests.sgl_ext.engine_variables import cpu_engine_variables
from tests.sgl_ext.packed_rows import row_variables
from tests.sgl_ext.run_engine import DEFAULTS

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 900) for _ in range(length)]


CHUNK, IMAGE = 256, 1004  # tokens of a prefill; the tiny tokenizer's image token
# The image's 17 tokens lie across a chunk's end, so the next chunk's first n-grams reach back into it.
LONG = [*prompt(250, seed=2), IMAGE, *prompt(433, seed=8)]
# Decode, several prefill chunks, a prefix-cache hit, and the same prompt once more. Without log-probabilities
# of the prompt ("last": 0) bounded replay leaves out most of a chunk in the last layers, where it is on.
REQUESTS: list[dict[str, Any]] = [
    {"ids": prompt(33, seed=1), "new": 10, "last": 8},
    {"ids": LONG, "image": 1, "new": 6, "last": 0},
    {"ids": LONG[:600] + prompt(60, seed=3), "image": 1, "new": 6, "last": 0},
    {"ids": LONG, "image": 1, "new": 6, "last": 8},
]
# Retracted while they decode, and prefilled again with what they had said.
TOGETHER = [{"ids": prompt(length, seed=length), "new": 24, "last": 8} for length in (20, 70, 260)]
CLOSE = 0.02  # as in test_cpu_v41.py: such batches fall together differently each time, and so do sums


def run_engine(
    forks: EngineForks,
    folder: Path,
    model: Path,
    *,
    tp: int,
    packed: Path | None,
    requests: list[dict[str, Any]],
    together: list[dict[str, Any]] | None = None,
    replay: bool = False,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    engine = {
        "model_path": str(model),
        "tp_size": tp,
        "port": 43000 + 200 * tp,
        "chunked_prefill_size": CHUNK,
        "enable_decoder_swa_bounded_replay": replay,
    }
    job: dict[str, Any] = {"engine": engine, "requests": requests}
    if together is not None:
        job |= {"together": together, "retract_every": 8}
    environment = prepare(folder, job, tp, packed) | variables
    fork = forks.start("tests.sgl_ext.run_engine", folder, environment, "job.json", "out.json")
    return fork.wait(600)


def prepare(folder: Path, job: dict[str, Any], tp: int, packed: Path | None) -> dict[str, str]:
    """Writes the job; returns the engine's environment."""
    (folder / "reports").mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps(job))
    environment = cpu_engine_variables(tp, folder / "reports")
    if packed is not None:
        environment |= row_variables(packed)
    return environment


def far_apart(rows: list[list[float]], others: list[list[float]]) -> float:
    pairs = zip(rows, others, strict=True)
    return max(abs(a - b) for row, other in pairs for a, b in zip(row, other, strict=True))


@pytest.mark.parametrize(("tp", "replay"), [(1, True), (2, False)], ids=["tp1-replay", "tp2"])
def test_text_and_log_probabilities_are_those_of_the_tables_in_memory(
    tp: int, replay: bool, model_dir: Path, packed_dir: Path, tmp_path: Path, engine_forks: EngineForks
) -> None:
    answers = {}
    for name, packed in (("memory", None), ("disk", packed_dir)):
        folder = tmp_path / name
        done = run_engine(
            engine_forks,
            folder,
            model_dir,
            tp=tp,
            packed=packed,
            requests=REQUESTS,
            together=TOGETHER,
            replay=replay,
        )
        out = tmp_path / name / "out.json"
        assert out.is_file(), done.stderr[-4000:]
        answers[name] = json.loads(out.read_text())
    in_turn = len(REQUESTS)
    assert answers["disk"][:in_turn] == answers["memory"][:in_turn]
    assert answers["disk"][1]["length"] == len(LONG) - 1 + 17 and answers["disk"][2]["cached"] >= CHUNK
    # It changes what the last layers see, more than another cut into chunks does: else it was not in effect.
    assert (far_apart(answers["disk"][1]["new"], answers["disk"][3]["new"]) > 1e-4) == replay
    assert sum(answer["retracted"] for answer in answers["disk"][in_turn:]) > 0
    for disk, memory in zip(answers["disk"][in_turn:], answers["memory"][in_turn:], strict=True):
        rows = list(zip(disk["prompt"] + disk["new"], memory["prompt"] + memory["new"], strict=True))
        far = [far_apart([one], [two]) for one, two in rows]
        # Rounding may choose another of two nearly equal experts for a token; a wrong row spoils all rows.
        assert sum(distance < CLOSE for distance in far) >= 0.8 * len(far)
    for rank in range(tp):
        report = json.loads((tmp_path / "disk" / "reports" / f"rank-{rank:02d}.json").read_text())
        assert "row_store" in report["hook_sets"]
        effect = report["server_args"] | report["resolved"]
        assert effect["enable_decoder_swa_bounded_replay"] is replay and effect["dtype"] == "float32"
        targets = {hook["target"].rsplit(".", 1)[-1] for hook in report["hooks"]}
        assert {"EngramEmbedding", "from_model", "stream_output"} <= targets


def test_missing_table_refuses_the_start_with_its_name(
    model_dir: Path, packed_dir: Path, tmp_path: Path, engine_forks: EngineForks
) -> None:
    part = tmp_path / "packed"
    part.mkdir()
    for path in packed_dir.iterdir():
        if "layer-01" in path.name or path.name == "manifest.json":
            (part / path.name).write_bytes(path.read_bytes())
    run_engine(engine_forks, tmp_path / "run", model_dir, tp=1, packed=part, requests=REQUESTS[:1])
    assert not (tmp_path / "run" / "out.json").exists()
    refusal = json.loads((tmp_path / "run" / "reports" / "refusal-rank-00.json").read_text())
    assert "packed Engram table of layer 3 for rank 0 of 1 must exist" in refusal["message"]
    assert "sparkctl engram pack" in refusal["hint"]


def test_another_ranks_file_refuses_the_start(
    model_dir: Path, packed_dir: Path, tmp_path: Path, engine_forks: EngineForks
) -> None:
    """Rank 1's rows under rank 0's name: without the check, every answer would be silently wrong."""
    wrong = tmp_path / "packed"
    wrong.mkdir()
    for path in packed_dir.iterdir():
        (wrong / path.name).write_bytes(path.read_bytes())
    shutil.copy(wrong / table_file_name(1, 1, 2), wrong / table_file_name(1, 0, 2))
    run_engine(engine_forks, tmp_path / "run", model_dir, tp=2, packed=wrong, requests=REQUESTS[:1])
    assert not (tmp_path / "run" / "out.json").exists()
    refusal = json.loads((tmp_path / "run" / "reports" / "refusal-rank-00.json").read_text())
    assert (refusal["kind"], refusal["exit_code"]) == ("TableMismatchError", 7)
    assert "rank must be 0, got 1" in refusal["message"] and table_file_name(1, 0, 2) in refusal["message"]


def own_copy(packed_dir: Path, packed: Path, tp: int = 1) -> list[str]:
    packed.mkdir()
    for path in packed_dir.iterdir():
        if f"of{tp}" in path.name or path.name == "manifest.json":
            (packed / path.name).write_bytes(path.read_bytes())
    return [str(path) for path in packed.glob("*.engram")]


def spoil_job(model: Path, spoil: dict[str, list[str]], tp: int = 1) -> dict[str, Any]:
    return {
        "engine": DEFAULTS | {"model_path": str(model), "port": 43900, "tp_size": tp},
        "prompts": [prompt(20, seed=4), prompt(20, seed=5)],
        "truncate": [],
        "touch": [],
        **spoil,
    }


def check_end(done: subprocess.CompletedProcess[str], folder: Path) -> None:
    """It answered one prompt, and ended at the second without an answer."""
    assert done.returncode != 0
    assert len((folder / "out.json").read_text().splitlines()) == 1, done.stderr[-4000:]
    assert "EngramReadError" in done.stderr


@pytest.mark.parametrize("tp", [1, 2])
def test_file_truncated_while_serving_ends_the_engine_and_gives_no_tokens(
    model_dir: Path, packed_dir: Path, tmp_path: Path, engine_forks: EngineForks, tp: int
) -> None:
    """The last rank's files alone: of two ranks the other one learns it with the rows."""
    tables = [path for path in own_copy(packed_dir, tmp_path / "packed", tp) if f"rank-{tp - 1}of" in path]
    folder = tmp_path / "run"
    environment = prepare(folder, spoil_job(model_dir, {"truncate": tables}, tp), tp, tmp_path / "packed")
    fork = engine_forks.start(
        "tests.sgl_ext.engram_rows.serve_then_spoil", folder, environment, "job.json", "out.json"
    )
    done = fork.wait(600)
    check_end(done, folder)
    told = f"Engram rows of layer 1 must be read, got error 5 (Input/output error) on rank {tp - 1};"
    assert done.stderr.count(told) >= tp, done.stderr[-4000:]


def test_disk_error_while_serving_ends_the_engine_and_gives_no_tokens(
    model_dir: Path, packed_dir: Path, tmp_path: Path
) -> None:
    """The kernel's answer to a sector that cannot be read, given by a library below the row store."""
    own_copy(packed_dir, tmp_path / "packed")
    library, broken = tmp_path / "bad_sectors.so", tmp_path / "broken"
    source = Path(__file__).with_name("bad_sectors.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    folder = tmp_path / "run"
    environment = prepare(folder, spoil_job(model_dir, {"touch": [str(broken)]}), 1, tmp_path / "packed")
    environment |= {
        "LD_PRELOAD": str(library),
        "BAD_SECTORS_WHEN": str(broken),
        "SPARKCTL_ENGRAM_BACKEND": "threads",  # io_uring's reads pass no function of the C library
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("serve_then_spoil.py")), "job.json", "out.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    check_end(done, folder)
    assert "Engram rows of layer 1 must be read, got error 61 (No data available) on rank 0" in done.stderr


def test_without_the_plugin_the_engine_does_not_serve(
    model_dir: Path, packed_dir: Path, tmp_path: Path, engine_forks: EngineForks
) -> None:
    """Stock SGLang has no CPU form of V4.1: it ends at its start, and never serves other rows instead."""
    folder = tmp_path / "run"
    done = run_engine(
        engine_forks,
        folder,
        model_dir,
        tp=1,
        packed=packed_dir,
        requests=REQUESTS[:1],
        SGLANG_PLUGINS="none",
    )
    assert done.returncode != 0 and not (folder / "out.json").exists()
    assert list((folder / "reports").iterdir()) == []  # what `sparkctl audit` then misses, by rank
