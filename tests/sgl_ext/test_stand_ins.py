"""The stand-ins: imported without effect, loud when used, and never in the way of a real package."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def run_python(code: str, tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A fresh interpreter that sees the standard library and this repository only."""
    return subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = [{str(REPOSITORY)!r}]\n{code}"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


# As in SGLang's detokenizer: the main process also checks a hook on SGLang itself, which is not there.
REGISTER = """
from sgl_ext.plugin import register
def run_detokenizer_process(): register()
run_detokenizer_process.__globals__["__name__"] = "sglang.srt.managers.detokenizer_manager"
run_detokenizer_process()
"""


def test_the_engine_imports_them_and_they_come_from_the_stand_ins(tmp_path: Path) -> None:
    result = run_python(
        REGISTER
        + "from sgl_kernel import copy_all_layer_kv_cache_cpu\n"
        + "import torchvision.transforms as T\n"
        + "import torchvision.transforms.v2.functional as tvF\n"
        + "from torchvision.transforms.functional import InterpolationMode, pil_to_tensor\n"
        + "from torchvision.io import ImageReadMode, decode_image\n"
        + "print({InterpolationMode.BICUBIC: 1}, hasattr(T, '__wrapped__'), T.__file__)\n",
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    )
    assert result.returncode == 0, result.stderr
    assert "sgl_ext/stand_ins/torchvision" in result.stdout
    assert "<stand-in for torchvision.transforms.InterpolationMode.BICUBIC>: 1" in result.stdout


@pytest.mark.parametrize(
    ("use", "named"),
    [
        ("from sgl_kernel import verify_tree_greedy_cpu as f; f(1)", "sgl_kernel.verify_tree_greedy_cpu"),
        ("from torchvision.io import decode_image as f; f(b'')", "torchvision.io.decode_image"),
        ("from torchvision.transforms import InterpolationMode as m; m.CUBIC", "InterpolationMode.CUBIC"),
        ("from torchvision.transforms import InterpolationMode as m; m.BOX()", "InterpolationMode.BOX"),
    ],
)
def test_using_one_says_which_and_why(use: str, named: str, tmp_path: Path) -> None:
    result = run_python(REGISTER + use, tmp_path, SGLANG_USE_CPU_ENGINE="1")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert "StandInUsed" in last
    assert f"{named} must come from the real" in last
    assert "GPU node" in last or "install the torchvision" in last


@pytest.mark.parametrize(
    "probe",
    [
        "from sgl_kernel import rmsnorm",
        "import sgl_kernel; sgl_kernel.rmsnorm",
        "from torchvision import ops",
        "import torchvision.transforms as T; T.Compose",
        "import torchvision.ops",
    ],
)
def test_a_name_they_do_not_hold_cannot_be_imported(probe: str, tmp_path: Path) -> None:
    result = run_python(REGISTER + probe, tmp_path, SGLANG_USE_CPU_ENGINE="1")
    assert result.returncode == 1
    assert result.stderr.strip().splitlines()[-1].startswith(("ImportError", "ModuleNotFoundError"))


@pytest.mark.parametrize("environment", [{}, {"SGLANG_USE_CPU_ENGINE": "0"}])
def test_a_gpu_engine_never_sees_them(environment: dict[str, str], tmp_path: Path) -> None:
    code = (
        REGISTER + "import importlib.util as u; print(u.find_spec('sgl_kernel'), u.find_spec('torchvision'))"
    )
    result = run_python(code, tmp_path, **environment)
    assert result.stdout == "None None\n", result.stderr


def test_an_installed_package_wins(tmp_path: Path) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text("real = True\n")
    code = f"sys.path.append({str(tmp_path)!r})\n" + REGISTER + "import torchvision, sgl_kernel\n"
    result = run_python(
        code + "print(torchvision.real, 'stand_ins' in sgl_kernel.__file__)",
        tmp_path,
        SGLANG_USE_CPU_ENGINE="1",
    )
    assert result.stdout == "True True\n", result.stderr


def test_registering_twice_adds_the_directory_once(tmp_path: Path) -> None:
    code = REGISTER * 2 + "print(sum('stand_ins' in entry for entry in sys.path))"
    assert run_python(code, tmp_path, SGLANG_USE_CPU_ENGINE="1").stdout == "1\n"


def test_a_broken_installation_ends_the_process(tmp_path: Path) -> None:
    code = (
        "import sgl_ext.stand_ins as s; from pathlib import Path; s.DIRECTORY = Path('/nonexistent')\n"
        + REGISTER
    )
    result = run_python(code, tmp_path, SGLANG_USE_CPU_ENGINE="1")
    assert result.returncode == 70
    assert "refuses to start" in result.stderr
    assert "/nonexistent/sgl_kernel must be a package" in result.stderr
