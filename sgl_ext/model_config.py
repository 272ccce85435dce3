"""The config.json of the model that an engine is asked to serve."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sgl_ext.errors import SettingError


def read_model_config(model_path: str) -> dict[str, Any] | None:
    """The model folder's config.json, or None where model_path is not a local folder with one."""
    path = Path(model_path) / "config.json"
    if not path.is_file():
        return None
    try:
        config = json.loads(path.read_text())
    except ValueError as error:
        raise SettingError(
            f"config.json must be JSON, got {error} ({path}).", hint="copy the model folder again"
        ) from error
    if not isinstance(config, dict):
        raise SettingError(
            f"config.json must hold an object, got {type(config).__name__} ({path}).",
            hint="copy the model folder again",
        )
    return config
