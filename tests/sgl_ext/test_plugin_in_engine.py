"""A plugin that cannot do its work ends the real engine, and the refusal names the hook.

Each case runs SGLang with a copy of sgl_ext in which one thing is wrong, as after a careless update.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sgl_ext
from sgl_ext.tiny_model.v41 import build_v41
from sgl_ext.tiny_model.v41_sizes import CPU
from tests.sgl_ext.engine_forks import EngineForks
from tests.sgl_ext.engine_variables import cpu_engine_variables

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]

StartAndFail = Callable[..., tuple[dict[str, Any], str]]
ROGUE = """
def register():
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.kernels.ops.layernorm.mhc.mhc_combine", lambda *args: None, HookType.REPLACE
    )
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v41") / "model"
    build_v41(out, CPU, seed=1)
    return out


@pytest.fixture
def copied_plugin(tmp_path: Path) -> Path:
    """A copy of the package that comes first on the path; the test spoils it."""
    source = Path(sgl_ext.__file__).parent
    target = tmp_path / "path" / "sgl_ext"
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.npz"))
    return target


def spoil(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@pytest.fixture
def start_and_fail(model: Path, tmp_path: Path, engine_forks: EngineForks) -> StartAndFail:
    """The refusal file and the engine's log of a start that must not succeed."""

    def start(**variables: str) -> tuple[dict[str, Any], str]:
        reports = tmp_path / "reports"
        reports.mkdir()
        job = {"engine": {"model_path": str(model), "port": 41900}, "requests": []}
        (tmp_path / "job.json").write_text(json.dumps(job))
        environment = cpu_engine_variables(1, reports) | {"PYTHONPATH": str(tmp_path / "path")} | variables
        done = engine_forks.start(
            "tests.sgl_ext.run_engine",
            tmp_path,
            environment,
            "job.json",
            "out.json",
            path=[tmp_path / "path"],
        ).wait(400)
        log = done.stdout + done.stderr
        assert done.returncode != 0, log[-3000:]
        assert not (tmp_path / "out.json").exists()
        assert not list(reports.glob("rank-*.json"))  # nothing vouches for this rank
        (refusal,) = reports.glob("refusal-*.json")
        content: dict[str, Any] = json.loads(refusal.read_text())
        return content, log

    return start


def test_drifted_source(copied_plugin: Path, start_and_fail: StartAndFail) -> None:
    hook = copied_plugin / "hooks" / "mhc_combine.py"
    spoil(hook, 'fingerprint="', 'fingerprint="0')
    refusal, log = start_and_fail()
    assert refusal["kind"] == "DriftError" and refusal["exit_code"] == 8
    assert "sglang.kernels.ops.layernorm.mhc.mhc_combine must have fingerprint 0" in refusal["message"]
    assert refusal["message"] in log


@pytest.mark.parametrize(
    ("module", "target", "other", "rows_from_disk"),
    [
        ("mhc_combine", "layernorm.mhc.mhc_combine", "layernorm.mhc.combine", False),
        (
            "engram_verify_eager",
            "DFlashVerifyInput.prepare_for_verify",
            "DFlashVerifyInput.prepare",
            True,
        ),
    ],
)
def test_renamed_target(
    copied_plugin: Path,
    start_and_fail: StartAndFail,
    module: str,
    target: str,
    other: str,
    rows_from_disk: bool,
) -> None:
    """Hooks come first: the folder holds no rows, and none are looked for."""
    spoil(copied_plugin / "hooks" / f"{module}.py", target, other)
    variables = {"SPARKCTL_ENGRAM_DIR": str(copied_plugin)} if rows_from_disk else {}
    refusal, log = start_and_fail(**variables)
    assert refusal["kind"] == "TargetError"
    assert f"{other} must exist in the installed SGLang" in refusal["message"]
    assert refusal["message"] in log


def test_wrong_sglang_version(copied_plugin: Path, start_and_fail: StartAndFail) -> None:
    spoil(copied_plugin / "hooks" / "scheduler_init.py", '("0.5.23",)', '("0.5.22",)')
    refusal, log = start_and_fail()
    assert refusal["kind"] == "VersionError"
    assert "SGLang must be 0.5.22" in refusal["message"] and "got 0.5.23" in refusal["message"]
    assert "sgl_ext refuses to start (scheduler)" in log


def test_another_plugin_took_the_target(tmp_path: Path, start_and_fail: StartAndFail) -> None:
    path = tmp_path / "path"
    (path / "rogue-1.0.dist-info").mkdir(parents=True)
    (path / "rogue-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: rogue\nVersion: 1.0\n"
    )
    (path / "rogue-1.0.dist-info" / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nrogue = rogue_plugin:register\n"
    )
    (path / "rogue_plugin.py").write_text(ROGUE)
    refusal, _ = start_and_fail()
    assert refusal["kind"] in ("DriftError", "EffectError")
    assert "sglang.kernels.ops.layernorm.mhc.mhc_combine" in refusal["message"]


def test_a_switch_set_the_other_way(start_and_fail: StartAndFail) -> None:
    refusal, _ = start_and_fail(SGLANG_OPT_USE_TOPK_V2="1")
    assert refusal["message"].startswith(
        "SGLANG_OPT_USE_TOPK_V2 must be 0 for this model on this engine, got '1'"
    )
    assert refusal["hint"] == "unset SGLANG_OPT_USE_TOPK_V2"
