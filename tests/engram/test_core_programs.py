"""The core's C++ test programs, built with sanitizers: address and undefined behaviour, then threads."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parent / "core" / "Makefile"

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("variant", ["asan", "tsan"])
def test_core_programs(variant: str, tmp_path: Path) -> None:
    missing = [tool for tool in ("make", "g++") if shutil.which(tool) is None]
    if missing or not Path("/usr/include/liburing.h").is_file():
        pytest.skip(f"needs make, g++ and liburing-dev, missing: {missing or 'liburing.h'}")
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        ["make", "-s", f"-j{os.cpu_count()}", "-f", str(MAKEFILE), variant],
        capture_output=True,
        text=True,
        timeout=280,
        env=environment,
        check=False,
    )
    report = done.stdout + done.stderr
    assert done.returncode == 0, report
    programs = sorted(path.stem for path in MAKEFILE.parent.glob("*_test.cpp"))
    assert len(programs) >= 6
    skipped = [line for line in report.splitlines() if line.startswith(f"skip {variant}")]
    passed = [line for line in report.splitlines() if line.startswith(f"ok {variant}")]
    assert len(passed) + len(skipped) == len(programs), report
    if skipped:
        pytest.skip(report)
