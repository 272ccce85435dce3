"""The plugin is imported in every SGLang process; it must not pull heavy modules in."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import sgl_ext

HEAVY = ("torch", "sglang.srt", "numpy", "transformers", "triton", "pydantic", "engram")


def run(code: str, cwd: Path | None = None, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env={**os.environ, **environment},
    )


def test_import_and_register_in_main_load_nothing_heavy() -> None:
    code = f"import sys, sgl_ext.plugin as p; p.register(); print([m for m in {HEAVY!r} if m in sys.modules])"
    done = run(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_bad_setting_ends_the_process_with_its_exit_code() -> None:
    done = run("import sgl_ext.plugin as p; p.register()", SPARKCTL_REPORT_DIR="not/absolute")
    assert done.returncode == 3
    assert "sgl_ext refuses to start (main): SPARKCTL_REPORT_DIR must be an absolute path" in done.stderr


def test_a_half_copied_plugin_ends_the_process(tmp_path: Path) -> None:
    """SGLang logs what a plugin raises and goes on without it."""
    shutil.copytree(
        Path(sgl_ext.__file__).parent, tmp_path / "sgl_ext", ignore=shutil.ignore_patterns("*.npz", "*.so")
    )
    (tmp_path / "sgl_ext" / "rank_report.py").write_text("def cut off here")
    done = run("import sgl_ext.plugin as p; p.register()", cwd=tmp_path)
    assert done.returncode == 70
    assert "sgl_ext refuses to start: it cannot be imported: SyntaxError" in done.stderr
