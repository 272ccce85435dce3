"""SGLang's own engine on the CPU: Engram rows from packed files against its tables in memory.

Same kernels, same order of sums: tokens and every log-probability must be the same to the bit.
"""

import importlib.util
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tests.sgl_ext
from engram.table_format import table_file_name
from tests.sgl_ext.run_engine import DEFAULTS

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]

SCRIPT = Path(next(iter(tests.sgl_ext.__path__))) / "run_engine.py"


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 900) for _ in range(length)]


LONG = prompt(700, seed=2)
# Decode, several prefill chunks, a prefix-cache hit, and the same prompt once more.
REQUESTS = [
    {"ids": prompt(33, seed=1), "new": 10, "last": 8},
    {"ids": LONG, "new": 6, "last": 8},
    {"ids": LONG[:600] + prompt(60, seed=3), "new": 6, "last": 8},
    {"ids": LONG, "new": 6, "last": 8},
]


def run_engine(
    folder: Path, model: Path, *, tp: int, packed: Path | None, requests: list[dict[str, Any]]
) -> subprocess.CompletedProcess[str]:
    engine = {"model_path": str(model), "tp_size": tp, "port": 43000 + 200 * tp, "chunked_prefill_size": 256}
    return run_script(SCRIPT, folder, {"engine": engine, "requests": requests}, tp=tp, packed=packed)


def run_script(
    script: Path, folder: Path, job: dict[str, Any], *, tp: int, packed: Path | None, **more: str
) -> subprocess.CompletedProcess[str]:
    folder.mkdir()
    (folder / "reports").mkdir()
    (folder / "job.json").write_text(json.dumps(job))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARKCTL_")}
    environment |= {
        "SGLANG_USE_CPU_ENGINE": "1",
        "SPARKCTL_FORK_CHILDREN": "1",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "SGLANG_CPU_OMP_THREADS_BIND": "|".join(str(rank % (os.cpu_count() or 1)) for rank in range(tp)),
        "SPARKCTL_REPORT_DIR": str(folder / "reports"),
    }
    if packed is not None:
        environment |= {
            "SPARKCTL_ENGRAM_DIR": str(packed),
            "SPARKCTL_ENGRAM_BUFFERED": "1",
            "SPARKCTL_ENGRAM_CACHE_GIB": "0",
            "SPARKCTL_ENGRAM_LOOKAHEAD_GIB": "0",
        }
    environment |= more
    return subprocess.run(
        [sys.executable, str(script), "job.json", "out.json"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize("tp", [1, 2])
def test_text_and_log_probabilities_are_those_of_the_tables_in_memory(
    tp: int, model_dir: Path, packed_dir: Path, tmp_path: Path
) -> None:
    answers = {}
    for name, packed in (("memory", None), ("disk", packed_dir)):
        done = run_engine(tmp_path / name, model_dir, tp=tp, packed=packed, requests=REQUESTS)
        out = tmp_path / name / "out.json"
        assert out.is_file(), done.stderr[-4000:]
        answers[name] = json.loads(out.read_text())
    assert answers["disk"] == answers["memory"]
    assert answers["disk"][2]["cached"] > 0
    for rank in range(tp):
        report = json.loads((tmp_path / "disk" / "reports" / f"rank-{rank:02d}.json").read_text())
        assert "row_store" in report["hook_sets"]
        targets = {hook["target"].rsplit(".", 1)[-1] for hook in report["hooks"]}
        assert {"EngramEmbedding", "from_model", "stream_output"} <= targets


def test_missing_table_refuses_the_start_with_its_name(
    model_dir: Path, packed_dir: Path, tmp_path: Path
) -> None:
    part = tmp_path / "packed"
    part.mkdir()
    for path in packed_dir.iterdir():
        if "layer-01" in path.name or path.name == "manifest.json":
            (part / path.name).write_bytes(path.read_bytes())
    run_engine(tmp_path / "run", model_dir, tp=1, packed=part, requests=REQUESTS[:1])
    assert not (tmp_path / "run" / "out.json").exists()
    refusal = json.loads((tmp_path / "run" / "reports" / "refusal-rank-00.json").read_text())
    assert "packed Engram table of layer 3 for rank 0 of 1 must exist" in refusal["message"]
    assert "sparkctl engram pack" in refusal["hint"]


def test_another_ranks_file_refuses_the_start(model_dir: Path, packed_dir: Path, tmp_path: Path) -> None:
    """Rank 1's rows under rank 0's name: without the check, every answer would be silently wrong."""
    wrong = tmp_path / "packed"
    wrong.mkdir()
    for path in packed_dir.iterdir():
        (wrong / path.name).write_bytes(path.read_bytes())
    shutil.copy(wrong / table_file_name(1, 1, 2), wrong / table_file_name(1, 0, 2))
    run_engine(tmp_path / "run", model_dir, tp=2, packed=wrong, requests=REQUESTS[:1])
    assert not (tmp_path / "run" / "out.json").exists()
    refusal = json.loads((tmp_path / "run" / "reports" / "refusal-rank-00.json").read_text())
    assert (refusal["kind"], refusal["exit_code"]) == ("TableMismatchError", 7)
    assert "rank must be 0, got 1" in refusal["message"] and table_file_name(1, 0, 2) in refusal["message"]


def own_copy(packed_dir: Path, packed: Path) -> list[str]:
    packed.mkdir()
    for path in packed_dir.iterdir():
        if "of1" in path.name or path.name == "manifest.json":
            (packed / path.name).write_bytes(path.read_bytes())
    return [str(path) for path in packed.glob("*.engram")]


def serve_and_spoil(
    folder: Path, model: Path, packed: Path, spoil: dict[str, list[str]], **environment: str
) -> subprocess.CompletedProcess[str]:
    """Must answer one prompt, and end at the second without an answer."""
    job = {
        "engine": DEFAULTS | {"model_path": str(model), "port": 43900},
        "prompts": [prompt(20, seed=4), prompt(20, seed=5)],
        "truncate": [],
        "touch": [],
        **spoil,
    }
    script = Path(__file__).with_name("serve_then_spoil.py")
    done = run_script(script, folder, job, tp=1, packed=packed, **environment)
    assert done.returncode != 0
    assert len((folder / "out.json").read_text().splitlines()) == 1, done.stderr[-4000:]
    assert "EngramReadError" in done.stderr
    return done


def test_file_truncated_while_serving_ends_the_engine_and_gives_no_tokens(
    model_dir: Path, packed_dir: Path, tmp_path: Path
) -> None:
    tables = own_copy(packed_dir, tmp_path / "packed")
    done = serve_and_spoil(tmp_path / "run", model_dir, tmp_path / "packed", {"truncate": tables})
    assert "Engram rows of layer 1 must be read, got error 5 (Input/output error) on rank 0" in done.stderr


def test_disk_error_while_serving_ends_the_engine_and_gives_no_tokens(
    model_dir: Path, packed_dir: Path, tmp_path: Path
) -> None:
    """The kernel's answer to a sector that cannot be read, given by a library below the row store."""
    own_copy(packed_dir, tmp_path / "packed")
    library, broken = tmp_path / "bad_sectors.so", tmp_path / "broken"
    source = Path(__file__).with_name("bad_sectors.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    variables = {
        "LD_PRELOAD": str(library),
        "BAD_SECTORS_WHEN": str(broken),
        "SPARKCTL_ENGRAM_BACKEND": "threads",  # io_uring's reads pass no function of the C library
    }
    done = serve_and_spoil(
        tmp_path / "run", model_dir, tmp_path / "packed", {"touch": [str(broken)]}, **variables
    )
    assert "Engram rows of layer 1 must be read, got error 61 (No data available) on rank 0" in done.stderr


def test_without_the_plugin_the_engine_does_not_serve(
    model_dir: Path, packed_dir: Path, tmp_path: Path
) -> None:
    """Stock SGLang has no CPU form of V4.1: it ends at its start, and never serves other rows instead."""
    done = run_script(
        SCRIPT,
        tmp_path / "run",
        {"engine": {"model_path": str(model_dir), "port": 43950}, "requests": REQUESTS[:1]},
        tp=1,
        packed=packed_dir,
        SGLANG_PLUGINS="none",
    )
    assert done.returncode != 0 and not (tmp_path / "run" / "out.json").exists()
    assert list((tmp_path / "run" / "reports").iterdir()) == []  # what `sparkctl audit` then misses, by rank
