"""The sources of sparkctl that the engine's extension is built from, as one zip: the same bytes each time."""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path

import launcher
from launcher.errors import UsageError
from launcher.frozen_model import FrozenModel

ROOT = Path(launcher.__file__).parents[1]
FILES = ("pyproject.toml", "setup.py", "LICENSE", "README.md")
FOLDERS = ("launcher", "engram", "sgl_ext", "recipes")
SUFFIXES = (".py", ".cpp", ".hpp", ".yaml", ".json", ".txt", ".npz", ".typed", ".sh")
FIXED_TIME = (1980, 1, 1, 0, 0, 0)


class BuiltExtension(FrozenModel):
    extension_id: str
    file_name: str
    sha256: str
    was_there: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """One of both: `source` is a zip to build from on the first node, `wheel` a file of that node."""

    source: bytes | None = None
    wheel: str | None = None


def extension_sources(root: Path = ROOT) -> bytes:
    """Raises UsageError where sparkctl was installed without its build files."""
    if not (root / "setup.py").is_file():
        raise UsageError(
            f"the extension's sources must be there to build it, got none in {root}",
            hint="run sparkctl from its source directory, or: sparkctl install --extension FILE",
        )
    paths = [root / name for name in FILES]
    for folder in FOLDERS:
        paths += sorted(path for path in (root / folder).rglob("*") if path.suffix in SUFFIXES)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in paths:
            if path.is_file():
                name = str(path.relative_to(root))
                archive.writestr(zipfile.ZipInfo(name, FIXED_TIME), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def choose_extension(asked: str) -> Extension | None:
    """`build`, `none`, or a wheel's path on the first node."""
    if asked == "none":
        return None
    if asked == "build":
        return Extension(source=extension_sources())
    return Extension(wheel=asked)
