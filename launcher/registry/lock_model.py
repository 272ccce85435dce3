"""The model's part of a lock: from a checkpoint on this machine, or from the hub's listing."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

from launcher.errors import ConfigError, UsageError
from launcher.node.answer import Refused
from launcher.node.weights_hash import hash_files
from launcher.node.weights_manifest import is_safe_name, is_verified, read_manifest
from launcher.recipe import Recipe
from launcher.registry.errors import RegistryUnreachable
from launcher.registry.recipe_lock import LockedFile, LockedModel

LIST_TIMEOUT_S = 120.0
OWN_MODELS = "~/.local/share/sparkctl/models"
_COMMIT = re.compile(r"[0-9a-f]{40}")


def lock_model(recipe: Recipe, checkpoint: Path | None) -> LockedModel:
    """A directory when one is named or the embedded model is here; else the hub. Raises UsageError."""
    own = Path(OWN_MODELS).expanduser() / recipe.model.path
    if checkpoint is None and recipe.engine.runtime == "cpu" and own.is_dir():
        checkpoint = own
    if checkpoint is not None:
        return from_checkpoint(recipe, checkpoint)
    if recipe.model.repo is None:
        raise UsageError(
            f"a lock of {recipe.name} must know its model: it has no model.repo,"
            " and no checkpoint was named.",
            hint=f"sparkctl recipe lock {recipe.name} --checkpoint DIR",
        )
    return from_hub(recipe)


def from_checkpoint(recipe: Recipe, directory: Path) -> LockedModel:
    """Hashes of the manifest that `weights` keeps, for files that are still those; the others are read."""
    if not (directory / "config.json").is_file():
        raise ConfigError(
            f"{directory} must be a checkpoint, it has no config.json.", hint="--checkpoint DIR"
        )
    try:
        manifest = read_manifest(directory) or {"files": {}, "origin": {}}
        names = sorted(_names(directory))
        known = {
            name: manifest["files"][name]["sha256"]
            for name in names
            if name in manifest["files"] and is_verified(directory, name, manifest["files"][name])
        }
        hashed = hash_files(
            {name: directory / name for name in names if name not in known}, lambda num_bytes: None
        )
    except Refused as refusal:
        raise ConfigError(refusal.message, hint=refusal.hint) from refusal
    for found in hashed.values():
        if isinstance(found, Refused):
            raise ConfigError(found.message, hint=found.hint)
    known |= {name: found[0] for name, found in hashed.items()}
    files = {
        name: LockedFile(size_bytes=(directory / name).stat().st_size, sha256=known[name]) for name in names
    }
    revision = manifest["origin"].get("revision") or recipe.model.revision
    return LockedModel(source="checkpoint", repo=recipe.model.repo, revision=revision, files=files)


def _names(directory: Path) -> list[str]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return [name for name in (str(path.relative_to(directory)) for path in paths) if is_safe_name(name)]


def from_hub(recipe: Recipe) -> LockedModel:
    """The listing of recipe.model.repo at its revision, asked in a process of its own."""
    code = (pkgutil.get_data("launcher.node", "weights_hub.py") or b"").decode()
    request = json.dumps({"repo": recipe.model.repo, "revision": recipe.model.revision}) + "\n"
    try:
        done = subprocess.run([sys.executable, "-c", code], input=request, capture_output=True, text=True,
                              timeout=LIST_TIMEOUT_S, check=False)  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[0])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise RegistryUnreachable(
            f"the hub must list {recipe.model.repo}, got: {type(error).__name__}.",
            hint="lock from a checkpoint instead: --checkpoint DIR",
        ) from error
    if "error" in answer:
        raise RegistryUnreachable(
            answer["error"], hint=f"{answer.get('hint', '')}; or lock from a checkpoint: --checkpoint DIR"
        )
    wanted = recipe.model.revision or ""
    if _COMMIT.fullmatch(wanted) and answer["commit"] != wanted:
        raise ConfigError(f"{recipe.model.repo} must be at {wanted}, the hub named {answer['commit']}.")
    files = {name: LockedFile.model_validate(item) for name, item in answer["files"].items()}
    return LockedModel(source="hub", repo=recipe.model.repo, revision=answer["commit"], files=files)
