"""Push: a recipe and its lock as one commit on a branch of a registry, made without a checkout."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.node.run_dir import write_file
from launcher.registry.check_tree import INDEX_NAME, lock_path, recipe_path
from launcher.registry.data_directory import data_directory
from launcher.registry.errors import RegistryRefused, RegistryUnreachable
from launcher.registry.prepare_push import Package
from launcher.registry.reference import Reference, newest, version_key
from launcher.registry.registries import IndexCopy
from launcher.registry.registry_index import (
    RegistryIndex,
    VersionEntry,
    entry_of,
    sha256_of,
    write_index,
)
from launcher.registry.registry_url import RegistryUrl
from launcher.registry.run_git import git, user_identity
from launcher.registry.update_registry import check_branch, fetch_tip, read_copy, remote_commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """`branch` None: a branch of the recipe's own, for others to review. `is_new`: the registry is empty."""

    registry: str
    url: RegistryUrl
    base: str | None = None
    branch: str | None = None
    is_new: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Push:
    reference: Reference
    branch: str
    commit: str
    sha256: str
    has_lock: bool


def push_recipe(package: Package, version: str | None, target: Target) -> Push:
    """Raises UsageError when the version is there with other content, RegistryUnreachable when git could not
    push. Nothing of the registry changes then.
    """
    check_branch(target.branch)
    author = user_identity()
    root = data_directory()
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="push-", dir=root) as scratch:
        repository = Path(scratch) / "repo.git"
        parent, copy = _tip(repository, target)
        reference = _choose(package, version, target.registry, copy.index)
        branch = target.branch or (
            "main" if target.is_new else f"sparkctl/{reference.name}-{reference.version}"
        )
        tree = _write_tree(repository, Path(scratch), _files(package, reference, copy.index), parent)
        commit = _commit(repository, tree, parent, reference, author)
        # What others would refuse to read is refused here.
        read_copy(repository, commit, target.registry)
        _push(repository, commit, branch, target, reference)
    return Push(
        reference=reference, branch=branch, commit=commit, sha256=sha256_of(package.content),
        has_lock=package.lock is not None,
    )  # fmt: skip


def _tip(repository: Path, target: Target) -> tuple[str | None, IndexCopy]:
    """Commit and index that the new commit stands on."""
    if target.is_new:
        if remote_commit(target.url, None) is not None:
            raise UsageError(
                f"a registry that --new begins must be empty, {target.url.text} has commits.",
                hint=f"sparkctl recipe registry add {target.registry} {target.url.text}; push without --new",
            )
        repository.mkdir(parents=True)
        git(["init", "--quiet", "--bare", "--template=", "--", str(repository)])
        return None, IndexCopy(index=RegistryIndex(schema_version=1, recipes={}), objects={})
    parent = fetch_tip(repository, target.url, target.base)
    return parent, read_copy(repository, parent, target.registry)


def _choose(package: Package, version: str | None, registry: str, index: RegistryIndex) -> Reference:
    """The version named, else the next one: 1.0.0 for the first, the newest's last part plus one."""
    name = package.recipe.name
    entry = index.recipes.get(name)
    bare = Reference(registry=registry, name=name)
    if version is None:
        if entry is None:
            return bare.at("1.0.0")
        major, minor, patch = version_key(newest(tuple(entry.versions)))
        return bare.at(f"{major}.{minor}.{patch + 1}")
    if entry is not None and version in entry.versions:
        raise UsageError(
            f"{bare.at(version)} must not be in the registry yet, it is: a version never changes.",
            hint=f"leave the version out: the next one is taken; there are {', '.join(entry.versions)}",
        )
    return bare.at(version)


def _files(package: Package, reference: Reference, index: RegistryIndex) -> dict[str, bytes]:
    name, version = reference.name, reference.version or ""
    item = VersionEntry(
        sha256=sha256_of(package.content), lock_sha256=sha256_of(package.lock) if package.lock else None
    )
    known = index.recipes.get(name)
    versions = {**(known.versions if known else {}), version: item}
    described = entry_of(package.recipe, versions)
    if known and newest(tuple(versions)) != version:
        described = known.model_copy(update={"versions": versions})
    changed = index.model_copy(update={"recipes": {**index.recipes, name: described}})
    files = {INDEX_NAME: write_index(changed), recipe_path(name, version): package.content}
    if package.lock is not None:
        files[lock_path(name, version)] = package.lock
    return files


def _write_tree(repository: Path, scratch: Path, files: dict[str, bytes], parent: str | None) -> str:
    """The parent's tree with these files put over it."""
    own = {"GIT_INDEX_FILE": str(scratch / "index")}
    if parent is not None:
        git(["read-tree", parent], repository=repository, environment=own)
    entries = b""
    for path, content in files.items():
        # A file, not stdin with filters: git must store the bytes as they are.
        write_file(scratch / "blob", content)
        words = ["hash-object", "-w", "--no-filters", "--", str(scratch / "blob")]
        object_id = git(words, repository=repository).strip()
        entries += b"100644 " + object_id + b"\t" + path.encode() + b"\0"
    git(["update-index", "-z", "--index-info"], repository=repository, environment=own, stdin=entries)
    return git(["write-tree"], repository=repository, environment=own).decode().strip()


def _commit(
    repository: Path, tree: str, parent: str | None, reference: Reference, author: tuple[str, str]
) -> str:
    name, address = author
    who = {
        "GIT_AUTHOR_NAME": name, "GIT_AUTHOR_EMAIL": address,
        "GIT_COMMITTER_NAME": name, "GIT_COMMITTER_EMAIL": address,
    }  # fmt: skip
    parents = ["-p", parent] if parent else []
    message = f"Add {reference.name} {reference.version}\n".encode()
    words = ["commit-tree", *parents, tree]
    return git(words, repository=repository, environment=who, stdin=message).decode().strip()


def _push(repository: Path, commit: str, branch: str, target: Target, reference: Reference) -> None:
    words = ["push", "--quiet", "--no-verify", "--", target.url.text, f"{commit}:refs/heads/{branch}"]
    try:
        git(words, repository=repository, protocol=target.url.protocol, is_push=True)
    except RegistryUnreachable as error:
        if re.search(r"rejected|non-fast-forward|fetch first|stale info", error.message):
            raise RegistryRefused(
                f"branch {branch} of registry {target.registry} must not have moved, it has.",
                hint=f"repeat the command; or take another branch: --branch {reference.name}-2",
            ) from error
        raise
