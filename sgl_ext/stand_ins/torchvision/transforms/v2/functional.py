"""Imported (no name bound) by transformers' image and video processors."""

from sgl_ext.stand_ins import missing_name


def __getattr__(name: str) -> object:
    raise missing_name(__name__, name)
