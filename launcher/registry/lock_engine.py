"""The engine's part of a lock: an install lock, an environment, or a docker image by digest."""

from __future__ import annotations

import hashlib
import json
import pkgutil
import re
import subprocess
import sys
from importlib.metadata import version

from launcher.errors import ConfigError, UsageError
from launcher.install.find_lock import read_lock_file, shipped_locks
from launcher.node.engine_identity import content_hash, package_folder
from launcher.recipe import Recipe
from launcher.registry.recipe_lock import LockedEngine, LockedExtension, LockedPackage

EXTENSION = ("sgl_ext", "engram")
ASK_TIMEOUT_S = 60.0
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;\\]+)((?:\s+--hash=sha256:[0-9a-f]{64})+)")


def lock_extension() -> LockedExtension:
    """sparkctl as it is installed beside this launcher: the nodes must have the same."""
    content = {}
    for name in EXTENSION:
        folder = package_folder(name)
        if folder:
            content[name] = str(content_hash(folder)["sha256"])
    return LockedExtension(version=version("sparkctl"), content=content)


def lock_engine(recipe: Recipe, *, install_lock: str | None, python: str | None) -> LockedEngine:
    """docker: the digest. Else the install lock, and what `python` would import (this Python for the CPU
    engine, which lives beside the launcher).
    """
    engine = recipe.engine
    if engine.runtime == "docker":
        return LockedEngine(runtime="docker", sglang_version=engine.sglang_version, image=engine.image)
    if python is None and engine.runtime == "cpu":
        python = sys.executable
    packages: dict[str, LockedPackage] = {}
    content: dict[str, str] = {}
    lock_sha256 = None
    if python is not None:
        packages, content = _environment(python)
    if install_lock is None and engine.runtime == "venv":
        install_lock = _shipped_lock(recipe)
    if install_lock is not None:
        text = read_lock_file(install_lock)
        packages = _agree(packages, read_packages(text, install_lock), install_lock)
        lock_sha256 = hashlib.sha256(text.encode()).hexdigest()
    return LockedEngine(
        runtime=engine.runtime, sglang_version=engine.sglang_version, install_lock_sha256=lock_sha256,
        packages=packages, content=content,
    )  # fmt: skip


def read_packages(text: str, name: str) -> dict[str, LockedPackage]:
    """Of an install lock: NAME==VERSION --hash=sha256:... a line."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        match = _LINE.fullmatch(line.split(" #")[0].strip())
        if match:
            hashes = tuple(re.findall(r"[0-9a-f]{64}", match[3]))
            found[normal_name(match[1])] = LockedPackage(version=match[2], sha256=hashes)
        elif line.strip() and not line.lstrip().startswith("#"):
            raise ConfigError(f"{name} must hold NAME==VERSION --hash=sha256:... a line, got {line[:80]!a}.")
    return found


def normal_name(name: str) -> str:
    """As package indices compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _shipped_lock(recipe: Recipe) -> str:
    fitting = [name for name in shipped_locks() if name.startswith(f"sglang-{recipe.engine.sglang_version}-")]
    if len(fitting) != 1:
        raise UsageError(
            f"a lock of {recipe.name} must name the engine's packages: sparkctl ships {len(fitting)} install"
            f" locks for SGLang {recipe.engine.sglang_version}.",
            hint=f"sparkctl recipe lock {recipe.name} --install-lock NAME|FILE (docs/install.md)",
        )
    return fitting[0]


def _environment(python: str) -> tuple[dict[str, LockedPackage], dict[str, str]]:
    code = (pkgutil.get_data("launcher.node", "engine_identity.py") or b"").decode()
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=ASK_TIMEOUT_S,
                              check=False, cwd="/")  # fmt: skip
        said = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise ConfigError(
            f"{python} must be the Python of an engine, got: {error}.", hint="--python ENVIRONMENT/bin/python"
        ) from error
    packages = {
        normal_name(name): LockedPackage(version=seen) for name, seen in said["versions"].items() if seen
    }
    packages.pop("sparkctl", None)  # the extension's part says it
    content = {name: item["sha256"] for name, item in said["content"].items() if name not in EXTENSION}
    return packages, content


def _agree(
    seen: dict[str, LockedPackage], locked: dict[str, LockedPackage], name: str
) -> dict[str, LockedPackage]:
    for package, item in seen.items():
        other = locked.get(package)
        if other and other.version != item.version:
            raise ConfigError(
                f"{package} must be {other.version} by {name}, the environment has {item.version}.",
                hint="sparkctl install --lock, or name the lock that the environment was made from",
            )
    return {**seen, **locked}
