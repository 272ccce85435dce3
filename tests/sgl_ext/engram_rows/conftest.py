"""A V4.1-shaped model with images, and its Engram tables, small, packed for 1 to 4 ranks."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sgl_ext.tiny_model.v41 import build_v41
from sgl_ext.tiny_model.v41_sizes import CPU, CPU_VISION, resize
from tests.sgl_ext.packed_rows import pack_rows

LAYERS = (1, 3)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v41")
    build_v41(out, replace(resize(CPU, engram_vocab_size=500), vision=CPU_VISION), seed=7)
    return out


@pytest.fixture(scope="session")
def packed_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every rank of TP 1 to 4 in one folder, as one node would never have it."""
    out = tmp_path_factory.mktemp("packed")
    pack_rows(model_dir, out, (1, 2, 3, 4))
    return out


@pytest.fixture
def row_environment(packed_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name in [name for name in os.environ if name.startswith("SPARKCTL_ENGRAM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SPARKCTL_ENGRAM_DIR", str(packed_dir))
    monkeypatch.setenv("SPARKCTL_ENGRAM_BUFFERED", "1")
    monkeypatch.setenv("SPARKCTL_ENGRAM_CACHE_GIB", "0.01")
    monkeypatch.setenv("SPARKCTL_ENGRAM_LOOKAHEAD_GIB", "0.01")
    yield packed_dir
