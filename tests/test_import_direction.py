"""launcher imports neither torch, SGLang, engram nor sgl_ext; engram neither other package."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ENGINE = {"torch", "triton", "sglang", "transformers"}
FORBIDDEN = {
    "launcher": ENGINE | {"engram", "sgl_ext"},
    "engram": {"sglang", "launcher", "sgl_ext"},
    "sgl_ext": {"launcher"},
}


# `sparkctl engram` runs the row store's own code on this node, inside its functions only.
ALLOWED = {("launcher/cli/engram.py", "engram")}


def imported_packages(source: str) -> Iterator[tuple[int, str]]:
    """Line and top-level package of every absolute import, wherever in the file it stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name.split(".")[0]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.lineno, node.module.split(".")[0]


def files_of(package: str) -> list[Path]:
    return sorted((REPOSITORY / package).rglob("*.py"))


@pytest.mark.parametrize("package", FORBIDDEN)
def test_no_file_imports_across(package: str) -> None:
    files = files_of(package)
    assert files
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in files
        for line, name in imported_packages(path.read_text())
        if name in FORBIDDEN[package] and (str(path.relative_to(REPOSITORY)), name) not in ALLOWED
    ]
    assert found == []


def test_the_check_sees_an_import_inside_a_function() -> None:
    source = "def f():\n    from torch.nn import Module\n"
    assert list(imported_packages(source)) == [(2, "torch")]


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_the_command_line_starts_light() -> None:
    loaded = modules_after("import launcher.cli.app")
    assert loaded.isdisjoint(ENGINE | {"engram", "sgl_ext", "numpy", "paramiko", "httpx"})


def test_the_plugin_loads_the_standard_library_only() -> None:
    before = modules_after("pass")
    added = {name.split(".")[0] for name in modules_after("import sgl_ext.plugin") - before}
    assert added <= {"sgl_ext", *sys.stdlib_module_names}
