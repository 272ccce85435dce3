"""The packed Engram files that a node has, against those that its ranks read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from launcher.node.facts_packed import packed_facts


def make_model(folder: Path, layers: list[int]) -> dict[str, Any]:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"text_config": {"engram_layer_ids": layers}}))
    return {"path": str(folder), "problem": None}


def test_each_rank_and_layer_needs_its_file(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", [1, 3])
    packed = tmp_path / "tp3"

    def problem() -> Any:
        return packed_facts(path=str(packed), ranks=[2], tp=3, model=model)["problem"]

    assert problem() == "no such directory"
    packed.mkdir()
    (packed / "layer-01.rank-2of3.engram").touch()
    (packed / "layer-03.rank-2of4.engram").touch()
    assert problem() == "1 of 2 packed files are missing: layer-03.rank-2of3.engram"
    (packed / "layer-03.rank-2of3.engram").touch()
    assert problem() is None


def test_a_model_without_engram_is_named(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", [])
    found = packed_facts(path=str(tmp_path), ranks=[0], tp=1, model=model)
    assert "no Engram layers" in found["problem"]
