"""Base of every model that is read from a file: frozen, strict, no unknown key."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field


class FrozenModel(BaseModel):
    """Strict: "8" is no number and 8 is no text, so that what is written is what is used."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    # Keys that a file may hold beside the fields, resolved before the model sees them.
    file_keys: ClassVar[tuple[str, ...]] = ()


# A list in YAML and JSON, a tuple inside (frozen).
TextTuple = Annotated[tuple[str, ...], Field(strict=False)]
