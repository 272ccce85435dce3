"""Builds the row store's C++ core (engram/core) as engram._core; everything else is in pyproject.toml."""

import sys
from pathlib import Path

from pybind11.setup_helpers import Pybind11Extension, build_ext
from setuptools import setup

SOURCES = sorted(str(path) for path in Path("engram/core").glob("*.cpp"))

extensions = []
if SOURCES and sys.platform.startswith("linux"):
    extensions.append(
        Pybind11Extension(
            "engram._core",
            SOURCES,
            cxx_std=20,
            libraries=["uring"],
            extra_compile_args=["-O3", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
        )
    )

setup(ext_modules=extensions, cmdclass={"build_ext": build_ext})
