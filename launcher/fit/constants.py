"""Numbers that were measured elsewhere, each with its public source (constants.json)."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

from pydantic import Field

from launcher.frozen_model import FrozenModel

GIB = 1 << 30
GB = 10**9


class Constant(FrozenModel):
    value: float = Field(ge=0, strict=False)
    source: str = Field(min_length=1)
    note: str = ""


class Constants(FrozenModel):
    """The unit is in the name, as the quoted source has it."""

    usable_gib: Constant
    idle_available_gib: Constant
    before_load_gib: Constant
    head_only_gib: Constant
    weights_per_static_fraction_gib: Constant
    work_gib_per_1024_chunk: Constant
    graph_gib: Constant
    nccl_default_gb: Constant
    nccl_small_gb: Constant
    serving_growth_gib: Constant
    floor_gb: Constant
    indexer_bytes_per_pair: Constant
    chunk_prefix_safe: Constant
    chunk_prefix_ran: Constant


@cache
def constants() -> Constants:
    text = files("launcher.fit").joinpath("constants.json").read_text(encoding="utf-8")
    return Constants.model_validate(json.loads(text))
