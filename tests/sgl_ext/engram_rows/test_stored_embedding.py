"""StoredEngramEmbedding against SGLang's EngramEmbedding: the same rows to the bit, on 1 to 4 ranks."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")
pytest.importorskip("sglang")

from engram.checkpoint import open_checkpoint  # noqa: E402
from sgl_ext.errors import EngramReadError, SettingError  # noqa: E402
from sgl_ext.stand_ins import add_stand_ins  # noqa: E402
from tests.sgl_ext.engine_forks import EngineForks  # noqa: E402
from tests.sgl_ext.engine_variables import cpu_engine_variables  # noqa: E402
from tests.sgl_ext.engram_rows.compare_rows import draw_ids, load_table  # noqa: E402
from tests.sgl_ext.engram_rows.conftest import LAYERS  # noqa: E402

pytestmark = pytest.mark.sglang


@pytest.fixture(autouse=True)
def cpu_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    add_stand_ins()
    yield
    from sgl_ext.engram.row_service import reset_row_service

    reset_row_service()


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_rows_equal_sglangs_on_all_ranks(
    tp: int, model_dir: Path, row_environment: Path, tmp_path: Path, engine_forks: EngineForks
) -> None:
    ranks = []
    for rank in range(tp):
        folder = tmp_path / f"run-{rank}"
        folder.mkdir()
        environment = cpu_engine_variables(tp, folder) | {
            name: value for name, value in os.environ.items() if name.startswith("SPARKCTL_ENGRAM_")
        }
        argv = (str(rank), str(tp), str(model_dir), str(tmp_path / "meet"), str(tmp_path))
        ranks.append(engine_forks.start("tests.sgl_ext.engram_rows.compare_rows", folder, environment, *argv))
    for done in [rank.wait(250) for rank in ranks]:
        assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(path.name for path in tmp_path.glob("rank-*")) == [f"rank-{rank}" for rank in range(tp)]


def make_layers(model_dir: Path, **parallel: int) -> object:
    from sglang.srt.runtime_context import get_parallel

    from sgl_ext.engram.embedding import StoredEngramEmbedding

    layout = open_checkpoint(model_dir).layout
    values = {"tp_size": 1, "tp_rank": 0, "attn_dp_size": 1, "attn_cp_size": 1, "tp_group": None} | parallel
    with get_parallel().override(**values):
        embeds = []
        for layer in LAYERS:
            bounds = layout.column_bounds(layer)
            embeds.append((StoredEngramEmbedding(bounds[-1], 64, layer, column_bounds=bounds), bounds))
        return embeds


def test_no_table_is_held_and_the_checkpoints_shape_is_checked(
    model_dir: Path, row_environment: Path
) -> None:
    (embed, _), _ = make_layers(model_dir)
    assert embed.weight.numel() == embed.scale.numel() == 0
    weight, scale = load_table(model_dir, 1)
    embed.weight.weight_loader(embed.weight, weight)
    embed.scale.weight_loader(embed.scale, scale)
    with pytest.raises(SettingError, match=r"must have shape \(\d+, 64\)"):
        embed.weight.weight_loader(embed.weight, weight[1:])


def test_missing_file_is_refused_when_the_layer_is_built(model_dir: Path, row_environment: Path) -> None:
    with pytest.raises(SettingError, match="layer 1 for rank 4 of 5 must exist"):
        make_layers(model_dir, tp_size=5, tp_rank=4)


@pytest.mark.parametrize("name", ["attn_dp_size", "attn_cp_size"])
def test_unsupported_parallel_modes_are_refused(name: str, model_dir: Path, row_environment: Path) -> None:
    with pytest.raises(SettingError, match=f"{name} must be 1"):
        make_layers(model_dir, **{name: 2})


def test_rows_of_another_revision_of_the_model_are_refused(
    model_dir: Path, row_environment: Path, tmp_path: Path
) -> None:
    """Same shapes, other content: nothing else would notice."""
    from sgl_ext.engram.row_service import get_row_service

    make_layers(model_dir)
    service = get_row_service()
    service.require_revision(model_dir)
    service.require_revision(tmp_path)  # a folder that says nothing of its revision
    (tmp_path / "tiny_model.json").write_text("another seed")
    with pytest.raises(SettingError, match=r"must be of revision tiny-\w+, as the model in .*, got tiny-"):
        service.require_revision(tmp_path)


def test_truncated_file_ends_the_step(
    model_dir: Path, row_environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "packed"
    copy.mkdir()
    for path in row_environment.iterdir():
        if "of1" in path.name or path.name == "manifest.json":
            (copy / path.name).write_bytes(path.read_bytes())
    monkeypatch.setenv("SPARKCTL_ENGRAM_DIR", str(copy))
    (embed, bounds), _ = make_layers(model_dir)
    embed.finish_load("layer 1")
    path = copy / "layer-01.rank-0of1.engram"
    os.truncate(path, 4096)
    with pytest.raises(EngramReadError, match="rows of layer 1 must be read, got error 5"):
        embed(draw_ids(bounds, 5, seed=3))
