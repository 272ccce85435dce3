"""Stand-ins for two packages that SGLang and transformers import on CPU without ever calling them.

`sgl_kernel` has no CPU build, and `torchvision` drags the CUDA build of torch in. A stand-in holds only
the names that are bound while SGLang is imported; each refuses to be used, and any other name cannot be
imported, so code that probes for the real package sees that it is missing.

`sgl_ext.plugin` puts this directory at the end of sys.path, so an installed package always wins.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NoReturn

DIRECTORY = Path(__file__).parent

WHY = {
    "sgl_kernel": (
        "The CPU engine runs models that need no sgl_kernel operation; serve this one on a GPU node, "
        "where the engine's own sglang-kernel package is installed."
    ),
    "torchvision": (
        "The CPU engine serves text models; to serve an image model, install the torchvision that fits the "
        "installed torch into the engine's environment."
    ),
}


class StandInUsed(RuntimeError):
    """Something called into a package of which only a stand-in is here."""


class _Refuses:
    """A name that may be imported and passed around, and raises as soon as it is used."""

    def __init__(self, name: str, members: tuple[str, ...] = ()) -> None:
        self._name = name
        for member in members:
            setattr(self, member, _Refuses(f"{name}.{member}"))

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise StandInUsed(_explain(self._name))

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):  # introspection (typing, inspect, pickle) is no use of the package
            raise AttributeError(attribute)
        raise StandInUsed(_explain(f"{self._name}.{attribute}"))

    def __repr__(self) -> str:
        return f"<stand-in for {self._name}>"


def refusing(name: str, *, members: tuple[str, ...] = ()) -> object:
    """A stand-in for one function or class; `members` are attributes read (not used) at import time."""
    return _Refuses(name, members)


def missing_name(module: str, attribute: str) -> Exception:
    """What a stand-in module raises for a name it does not hold."""
    if attribute.startswith("__"):
        return AttributeError(f"module {module!r} has no attribute {attribute!r}")
    return ImportError(_explain(f"{module}.{attribute}"), name=module)


def add_stand_ins() -> list[str]:
    """Make the missing ones of the packages importable; returns their names."""
    if str(DIRECTORY) in sys.path:  # a spawned child inherits its parent's path
        return []
    missing = [package for package in WHY if importlib.util.find_spec(package) is None]
    for package in missing:
        if not (DIRECTORY / package / "__init__.py").is_file():
            raise FileNotFoundError(f"{DIRECTORY / package} must be a package, got nothing there.")
    if missing:
        sys.path.append(str(DIRECTORY))
    return missing


def _explain(name: str) -> str:
    package = name.split(".")[0]
    return (
        f"{name} must come from the real {package}, got sparkctl's stand-in ({DIRECTORY / package}). "
        f"{WHY[package]}"
    )
