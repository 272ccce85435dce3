"""sparkctl's engine extension as one wheel on one node: built there from the sources, or taken over.

The other nodes receive this very file, so that all nodes run the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import io
import tempfile
import zipfile
from pathlib import Path

from launcher.node.answer import Refused, answer
from launcher.node.install_wheels import by_hash, run_tool
from launcher.node.weights_prepare import directory_lock, make_directory
from launcher.node.weights_report import Report

BUILD_HINT = "sudo apt install g++ liburing-dev python3-dev on that node; or bring a wheel: --extension FILE"
BUILD_NEEDS = "import setuptools, pybind11"


def extension_path(cache: str, extension_id: str) -> Path:
    return Path(cache).expanduser().absolute() / "wheels" / f"sparkctl-{extension_id}"


def install_extension(
    *, cache: str, python: str, source: str | None, wheel: str | None, wheels: str | None
) -> None:
    """`source`: a zip of the sources, base64; else `wheel` is a file of this node.

    Last line: {"done": {"extension_id", "file_name", "sha256", "was_there"}}.
    """
    data = base64.b64decode(source) if source else _read_wheel(wheel or "")
    tag = run_tool([python, "-c", "import sys; print(sys.implementation.cache_tag)"], "tell its version")
    extension_id = hashlib.sha256(data + tag.strip().encode()).hexdigest()[:12]
    directory = extension_path(cache, extension_id)
    make_directory(directory)
    with directory_lock(directory), Report("extension", 0):
        was_there = bool(by_hash(directory))
        if not was_there:
            if source:
                _build(directory, data, python, wheels)
            else:
                _place(directory / Path(wheel or "").name, data)
        ((sha256, path),) = by_hash(directory).items()
    answer({"done": {"extension_id": extension_id, "file_name": path.name, "sha256": sha256,
                     "was_there": was_there}})  # fmt: skip


def only_wheel(cache: str, extension_id: str, sha256: str) -> Path:
    """The wheel on this node. Raises Refused unless it is there with that hash."""
    directory = extension_path(cache, extension_id)
    path = by_hash(directory).get(sha256)
    if path is None:
        raise Refused(
            f"The extension must be on this node with sha256 {sha256[:16]}..., got none ({directory}).",
            "repeat it: sparkctl install",
        )
    return path


def _read_wheel(where: str) -> bytes:
    path = Path(where).expanduser()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Refused(
            f"--extension must be a wheel on the first node, got: {error.strerror} ({path}).",
            "leave it out to build it there from this sparkctl's sources",
        ) from error
    if path.suffix != ".whl" or not zipfile.is_zipfile(io.BytesIO(data)):
        raise Refused(
            f"--extension must be a wheel, got another file ({path}).", "pip wheel --no-deps . makes it"
        )
    return data


def _build(directory: Path, data: bytes, python: str, wheels: str | None) -> None:
    with tempfile.TemporaryDirectory(prefix=".build-", dir=directory) as temp:
        source, made = Path(temp) / "source", Path(temp) / "made"
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            archive.extractall(source)
        argv = [python, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
        argv += _build_options(python, wheels)
        try:
            run_tool([*argv, "--wheel-dir", str(made), str(source)], "build the extension")
        except Refused as refusal:
            raise Refused(refusal.message, BUILD_HINT) from refusal
        (path,) = made.glob("*.whl")
        _place(directory / path.name, path.read_bytes())


def _build_options(python: str, wheels: str | None) -> list[str]:
    """What builds must be there already, come from --wheels, or is fetched by pip."""
    try:
        run_tool([python, "-c", BUILD_NEEDS], "import what builds")
    except Refused:
        return ["--no-index", "--find-links", str(Path(wheels).expanduser())] if wheels else []
    return ["--no-build-isolation"]


def _place(path: Path, data: bytes) -> None:
    temp = path.with_name(f".{path.name}.sparkctl-partial")
    temp.write_bytes(data)
    temp.replace(path)
