"""Bound while transformers' image_utils.py and SGLang's image configs are imported."""

from sgl_ext.stand_ins import missing_name

from . import functional, v2
from .functional import InterpolationMode

__all__ = ["InterpolationMode", "functional", "v2"]


def __getattr__(name: str) -> object:
    raise missing_name(__name__, name)
