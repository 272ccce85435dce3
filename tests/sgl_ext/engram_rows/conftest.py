"""A V4.1-shaped model's Engram tables, small, packed for 1 to 4 ranks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from engram.checkpoint import open_checkpoint
from engram.pack_table import NoProgress, PackRequest, pack_tables
from sgl_ext.tiny_model.v41 import build_v41
from sgl_ext.tiny_model.v41_sizes import CPU, resize

LAYERS = (1, 3)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v41")
    build_v41(out, resize(CPU, engram_vocab_size=500), seed=7)
    return out


@pytest.fixture(scope="session")
def packed_dir(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every rank of TP 1 to 4 in one folder, as one node would never have it."""
    out = tmp_path_factory.mktemp("packed")
    checkpoint = open_checkpoint(model_dir)
    for tp in (1, 2, 3, 4):
        request = PackRequest(
            checkpoint=checkpoint,
            directory=out,
            source_repo="test/tiny",
            tp=tp,
            ranks=tuple(range(tp)),
            layer_ids=LAYERS,
            allow_buffered=True,
        )
        pack_tables(request, NoProgress())
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
