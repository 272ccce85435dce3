"""Runs a check in a process of its own with Triton's interpreter, which is chosen when Triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys


def run_interpreted(module: str) -> None:
    """Calls the module's check_all(); its failure is this test's."""
    done = subprocess.run(
        [sys.executable, "-c", f"import {module} as checks; checks.check_all()"],
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr[-3000:]
