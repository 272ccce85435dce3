"""The core's C++ test programs under sanitizers, and the core compiled for a Spark's processor."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pybind11
import pytest

MAKEFILE = Path(__file__).parent / "core" / "Makefile"
CORE = Path(__file__).parents[2] / "engram" / "core"
ELF_MACHINE_AARCH64 = 183

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


def test_core_compiles_for_aarch64(tmp_path: Path) -> None:
    """With -Werror: char is unsigned there, and other warnings appear. Not linked, not run.

    The bindings are checked against this machine's Python headers.
    """
    if shutil.which("aarch64-linux-gnu-g++") is None or not Path("/usr/include/liburing.h").is_file():
        pytest.skip("needs g++-aarch64-linux-gnu and liburing-dev: scripts/system_packages.sh test")
    settings = [
        f"BUILD={tmp_path}",
        f"PYTHON_INCLUDES=-I{sysconfig.get_path('include')} -I{pybind11.get_include()}",
    ]
    done = subprocess.run(
        ["make", "-s", f"-j{os.cpu_count()}", "-f", str(MAKEFILE), "aarch64", *settings],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    objects = sorted((tmp_path / "aarch64").glob("*.o"))
    sources = [path.stem for path in CORE.glob("*.cpp") if not path.stem.startswith("bindings")]
    assert [path.stem for path in objects] == sorted(sources)
    for path in objects:
        header = path.read_bytes()[:20]
        assert header[:4] == b"\x7fELF"
        assert int.from_bytes(header[18:20], "little") == ELF_MACHINE_AARCH64, path
