"""StoredEngramEmbedding against SGLang's EngramEmbedding: the same rows to the bit, on 1 to 4 ranks."""

import itertools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch, which comes with the engine: make up installs it")
pytest.importorskip("sglang")

from safetensors import safe_open  # noqa: E402
from torch import multiprocessing  # noqa: E402

from engram.checkpoint import open_checkpoint  # noqa: E402
from sgl_ext.errors import EngramReadError, SettingError  # noqa: E402
from sgl_ext.stand_ins import add_stand_ins  # noqa: E402
from tests.sgl_ext.engram_rows.conftest import LAYERS  # noqa: E402

pytestmark = pytest.mark.sglang


@pytest.fixture(autouse=True)
def cpu_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    add_stand_ins()
    yield
    from sgl_ext.engram.row_service import reset_row_service

    reset_row_service()


def load_table(model_dir: Path, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    prefix = f"layers.{layer}.engram.embed."
    index = json.loads((model_dir / "model.safetensors.index.json").read_text())["weight_map"]
    with safe_open(model_dir / index[prefix + "weight"], "pt") as shard:
        return shard.get_tensor(prefix + "weight"), shard.get_tensor(prefix + "scale")


def draw_ids(bounds: tuple[int, ...], tokens: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    columns = [
        torch.randint(low, high, (tokens,), generator=generator) for low, high in itertools.pairwise(bounds)
    ]
    return torch.stack(columns, dim=1)


def run_rank(rank: int, tp: int, model_dir: Path, rendezvous: Path, results: Path) -> None:
    """One rank: SGLang's sharded lookup with its all-reduce, and ours with its all-gather, over gloo."""
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    add_stand_ins()
    import torch.distributed as dist
    from sglang.srt.layers.engram import EngramEmbedding
    from sglang.srt.runtime_context import get_parallel

    from sgl_ext.engram.embedding import StoredEngramEmbedding

    class Gloo:
        def all_gather_into_tensor(self, output: torch.Tensor, part: torch.Tensor) -> None:
            dist.all_gather_into_tensor(output, part)

    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=tp)
    layout = open_checkpoint(model_dir).layout
    with get_parallel().override(tp_size=tp, tp_rank=rank, attn_dp_size=1, attn_cp_size=1, tp_group=Gloo()):
        stored = {}
        for layer in LAYERS:
            bounds = layout.column_bounds(layer)
            stored[layer] = StoredEngramEmbedding(bounds[-1], 64, layer, column_bounds=bounds)
        for layer in LAYERS:
            bounds = layout.column_bounds(layer)
            weight, scale = load_table(model_dir, layer)
            stock = EngramEmbedding(bounds[-1], 64, layer, column_bounds=bounds)
            stock._load_rows(stock.weight, weight)
            stock._load_rows(stock.scale, scale)
            for tokens in (1, 6, 257):
                ids = draw_ids(bounds, tokens, seed=tokens)
                expected = stock._owned_rows(ids)
                if tp > 1:
                    dist.all_reduce(expected)
                seen = stored[layer](ids)
                assert seen.shape == expected.shape == (tokens, 24, 64)
                assert torch.equal(seen.view(torch.int16), expected.view(torch.int16))
    (results / f"rank-{rank}").write_text("same")
    dist.destroy_process_group()


@pytest.mark.parametrize("tp", [1, 2, 3, 4])
def test_rows_equal_sglangs_on_all_ranks(
    tp: int, model_dir: Path, row_environment: Path, tmp_path: Path
) -> None:
    multiprocessing.spawn(run_rank, args=(tp, model_dir, tmp_path / "meet", tmp_path), nprocs=tp)
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
