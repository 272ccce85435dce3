"""Writes the tiny Qwen3: a real model directory of about 4 MB that any engine loads.

It was fitted to conversations.txt (scripts/fit_tiny_qwen3.py) so that its greedy replies read as words and
each next token wins by a wide margin: rounding that differs with the number of ranks cannot change a reply.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from sgl_ext.tiny_model.qwen3_config import CONFIG, GENERATION_CONFIG, TOKENIZER_CONFIG

FOLDER = Path(__file__).parent
WEIGHTS = FOLDER / "qwen3_weights.npz"
TOKENIZER = FOLDER / "qwen3_tokenizer.json"

Array = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def make_qwen3_files() -> dict[str, bytes]:
    """File name -> content; the same bytes every time, whatever the machine and the library versions."""
    return {
        "config.json": _json(CONFIG),
        "generation_config.json": _json(GENERATION_CONFIG),
        "tokenizer.json": TOKENIZER.read_bytes(),
        "tokenizer_config.json": _json(TOKENIZER_CONFIG),
        "model.safetensors": save(read_weights(), metadata={"format": "pt"}),
    }


def read_weights() -> dict[str, Array]:
    """The float32 weights by their names in the checkpoint, from 8-bit integers and one scale a row."""
    with np.load(WEIGHTS, allow_pickle=False) as stored:
        return {
            name: stored[name].astype(np.float32)
            * stored[f"{name}.scale"].reshape((-1,) + (1,) * (stored[name].ndim - 1))
            for name in sorted(stored.files)
            if not name.endswith(".scale")
        }


def _json(value: dict[str, object]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
