"""Builds engram._core (the row store) and sgl_ext.engram._native (CUDA host nodes);
the rest is in pyproject.toml.
"""

import sys
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
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
    extensions.append(
        Pybind11Extension(
            "sgl_ext.engram._native",
            sorted(str(path) for path in Path("sgl_ext/engram/native").glob("*.cpp")),
            cxx_std=20,
            extra_compile_args=["-O3", "-Wall", "-Wextra", "-Werror", "-fvisibility=hidden"],
        )
    )

ParallelCompile(default=0).install()  # one compiler a core

setup(ext_modules=extensions, cmdclass={"build_ext": build_ext})
