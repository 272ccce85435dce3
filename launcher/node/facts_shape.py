"""What the memory model needs of a node's checkpoint: config values, bytes by kind of tensor. Read-only."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from launcher.errors import SparkctlError
from launcher.fit.read_checkpoint import MODEL_TYPE, read_checkpoint, read_json_object

# Layers and experts of a kind have one size rule: 96,085 names become about a hundred.
_NUMBER = re.compile(r"\.\d+\.")


def shape_facts(directory: Path) -> dict[str, Any] | None:
    """{"problem", "config", "tensor_bytes"}; None for another model, whose tensors have no rules."""
    try:
        config = read_json_object(directory / "config.json")
        if config.get("model_type") != MODEL_TYPE:
            return None
        found: dict[str, int] = {}
        for tensor in read_checkpoint(directory):
            kind = _NUMBER.sub(".0.", tensor.name)
            found[kind] = found.get(kind, 0) + tensor.num_bytes
    except SparkctlError as error:
        return {"problem": error.message, "config": {}, "tensor_bytes": {}}
    return {"problem": None, "config": config.get("text_config"), "tensor_bytes": found}
