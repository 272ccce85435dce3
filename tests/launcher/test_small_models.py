"""The small models of the local recipes are made when they are missing, once, and never in a user's way."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher.choose_inputs import Inputs, choose_inputs
from launcher.errors import ConfigError
from launcher.small_models import make_what_is_missing

pytest.importorskip("tokenizers", reason="needs tokenizers, which come with the engine: make up installs it")


@pytest.fixture
def share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".local/share/sparkctl"


def two_nodes() -> Inputs:
    return choose_inputs(recipe=None, topology=None, nodes=2, port=None)


def make(inputs: Inputs) -> list[str]:
    told: list[str] = []
    make_what_is_missing(inputs.recipe, inputs.topology.nodes[0], told.append)
    return told


def test_the_first_start_makes_model_and_tables_and_the_next_nothing(
    share: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = two_nodes()
    told = make(inputs)
    assert [line.partition(" /")[0].partition(" done in")[0] for line in told] == [
        "first start: writing the small model",
        "first start:",
        "first start: packing its Engram tables into",
        "first start:",
    ]
    packed = share / "engram/tiny-v41/tp2"
    assert {path.name for path in packed.glob("*.engram")} == {
        f"layer-{layer:02d}.rank-{rank}of2.engram" for layer in (1, 3) for rank in (0, 1)
    }
    lost = packed / "layer-03.rank-1of2.engram"
    content = lost.read_bytes()
    lost.unlink()
    assert len(make(inputs)) == 2 and lost.read_bytes() == content
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: pytest.fail("nothing was missing"))
    assert make(inputs) == []


def test_two_first_starts_at_once_make_one_model(share: Path) -> None:
    inputs = two_nodes()
    with ThreadPoolExecutor(2) as pool:
        told = [*pool.map(make, (inputs, inputs))]
    assert sorted(map(len, told)) == [0, 4]
    assert (share / "models/tiny-v41/model.safetensors.index.json").is_file()


def test_a_folder_of_another_model_is_refused_and_kept(share: Path) -> None:
    other = share / "models/tiny-v41/weights.bin"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"somebody's")
    with pytest.raises(ConfigError, match="must be empty or hold the same tiny model"):
        make(two_nodes())
    assert other.read_bytes() == b"somebody's"


def test_tables_that_cannot_be_packed_name_the_command(share: Path) -> None:
    inputs = two_nodes()
    (share / "engram").mkdir(parents=True)
    (share / "engram/tiny-v41").write_text("a file where the folder belongs")
    with pytest.raises(ConfigError, match=r"Engram tables of .* must be packed into") as caught:
        make(inputs)
    assert caught.value.hint.startswith("sparkctl engram pack --checkpoint ")


def test_any_other_model_is_left_alone(share: Path) -> None:
    inputs = two_nodes()
    model = inputs.recipe.model.model_copy(update={"path": "/models/mine"})
    recipe = inputs.recipe.model_copy(update={"model": model})
    told: list[str] = []
    make_what_is_missing(recipe, inputs.topology.nodes[0], told.append)
    assert told == [] and not share.exists()
