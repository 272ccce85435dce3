"""Stand-in for torchvision, which SGLang imports for image models and text models never use."""

from sgl_ext.stand_ins import missing_name

from . import io, transforms

__all__ = ["io", "transforms"]

__version__ = "0.0.0"  # transformers parses it; older than every release, so no feature is assumed


def __getattr__(name: str) -> object:
    raise missing_name(__name__, name)
