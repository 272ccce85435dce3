"""Fetch a registry into a directory of its own, check all of it, and only then name it."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import UsageError
from launcher.registry.check_tree import INDEX_NAME, check_tree, lock_path, recipe_path
from launcher.registry.data_directory import data_lock, not_writable, save_model, sync_directory
from launcher.registry.errors import RegistryRefused, RegistryUnreachable
from launcher.registry.git_objects import TreeFile, list_files, read_files
from launcher.registry.reference import REGISTRY_FORM, is_registry_name, shown
from launcher.registry.registries import (
    IndexCopy,
    Registry,
    check_sha256,
    load_index,
    load_registry,
    record_path,
    registries_root,
    registry_names,
)
from launcher.registry.registry_index import RegistryIndex, parse_index
from launcher.registry.registry_url import RegistryUrl, parse_url
from launcher.registry.run_git import git

REF = "refs/sparkctl/tip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What an update brought: names of recipes, "name version" of versions."""

    registry: Registry
    num_recipes: int
    is_new_commit: bool
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


def add_registry(name: str, url: str, branch: str | None, now_unix: float) -> Change:
    """Raises UsageError when the name is taken by another address."""
    if not is_registry_name(name):
        raise UsageError(
            f"a registry's name must be {REGISTRY_FORM}, got {shown(name)}.",
            hint=f"sparkctl recipe registry add team {url}" if url.isprintable() else "",
        )
    parsed = parse_url(url)
    check_branch(branch)
    with data_lock():
        if record_path(name).is_file() and load_registry(name).url != parsed.text:
            raise UsageError(
                f"registry {name} must not be known yet, it is {load_registry(name).url}.",
                hint=f"take another name, or first: sparkctl recipe registry remove {name}",
            )
        return _update(name, parsed, branch, now_unix)


def update_registry(name: str, now_unix: float) -> Change:
    with data_lock():
        known = load_registry(name)
        url = RegistryUrl(protocol=known.protocol, text=known.url)
        return _update(name, url, known.branch, now_unix)


def remove_registry(name: str) -> Registry:
    """Pulled recipes stay."""
    with data_lock():
        known = load_registry(name)
        record_path(name).unlink()
        shutil.rmtree(record_path(name).parent)
    return known


def check_branch(branch: str | None) -> None:
    if branch is None:
        return
    plain = branch.replace("/", "").replace("-", "").replace(".", "").replace("_", "")
    if not (plain.isascii() and plain.isalnum()) or branch[0] in "-/." or ".." in branch or len(branch) > 100:
        raise UsageError(f"--branch must be a plain branch name, got {shown(branch)}.", hint="--branch main")


def _update(name: str, url: RegistryUrl, branch: str | None, now_unix: float) -> Change:
    old = load_registry(name) if name in registry_names() else None
    old_copy = load_index(old) if old else None
    if old and old_copy and remote_commit(url, branch) == old.commit:
        kept = old.model_copy(update={"updated_unix": now_unix})
        save_model(record_path(name), kept)
        return Change(registry=kept, num_recipes=len(old_copy.index.recipes), is_new_commit=False)
    home = registries_root() / name
    remove_leftovers(home, keep=old.generation if old else None)
    generation = f"copy-{secrets.token_hex(6)}"
    directory = home / generation
    try:
        commit, copy = fetch_checked(directory, url, branch, name)
        save_model(directory / "index.json", copy)
        made = Registry(
            name=name, url=url.text, protocol=url.protocol, branch=branch, commit=commit,
            generation=generation, updated_unix=now_unix,
        )  # fmt: skip
        save_model(record_path(name), made)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        if old is None:
            shutil.rmtree(home, ignore_errors=True)
        raise
    return _compare(made, copy.index, old_copy.index if old_copy else None)


def remove_leftovers(home: Path, *, keep: str | None) -> None:
    """Copies that nothing names: of an update that was killed, or the one before, which another command may
    have been reading when it was replaced.
    """
    for path in home.glob("copy-*"):
        if path.name != keep:
            shutil.rmtree(path)


def remote_commit(url: RegistryUrl, branch: str | None) -> str | None:
    """The tip there, without fetching it; None for an empty repository."""
    wanted = f"refs/heads/{branch}" if branch else "HEAD"
    said = git(["ls-remote", "--", url.text, wanted], protocol=url.protocol).decode("utf-8", "replace")
    first = said.split("\t")[0].strip()
    return first or None


def fetch_tip(repository: Path, url: RegistryUrl, branch: str | None) -> str:
    """A bare, shallow copy of the tip alone; its commit. Raises RegistryUnreachable, RegistryRefused."""
    try:
        repository.mkdir(parents=True)
    except OSError as error:
        raise not_writable(repository.parent, error) from error
    git(["init", "--quiet", "--bare", "--template=", "--", str(repository)])
    source = f"refs/heads/{branch}" if branch else "HEAD"
    git(
        ["fetch", "--quiet", "--depth=1", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance",
         "--", url.text, f"+{source}:{REF}"],
        repository=repository, protocol=url.protocol,
    )  # fmt: skip
    return git(["rev-parse", "--verify", f"{REF}^{{commit}}"], repository=repository).decode().strip()


def fetch_checked(directory: Path, url: RegistryUrl, branch: str | None, name: str) -> tuple[str, IndexCopy]:
    """Commit and index of a copy in which every file that the index names has its hash."""
    repository = directory / "repo.git"
    try:
        commit = fetch_tip(repository, url, branch)
    except RegistryUnreachable as error:
        if "couldn't find remote ref" in error.message:
            what = f"branch {branch}" if branch else "a commit"
            raise RegistryRefused(
                f"registry {name} must have {what}, got none.",
                hint="a new registry begins with: sparkctl recipe push RECIPE @NAME --new (docs/sharing.md)",
            ) from error
        raise
    copy = read_copy(repository, commit, name)
    for path in (repository / "objects" / "pack").glob("*.pack"):
        sync_directory(path.parent)
    return commit, copy


def read_copy(repository: Path, commit: str, name: str) -> IndexCopy:
    files = check_tree(list_files(repository, commit), name)
    index = parse_index(read_files(repository, [files[INDEX_NAME]])[0], name)
    wanted = named_files(index)
    _check_named(wanted, files, name)
    contents = read_files(repository, [files[path] for path in wanted])
    for (path, sha256), content in zip(wanted.items(), contents, strict=True):
        check_sha256(name, path, content, sha256)
    return IndexCopy(
        index=index,
        objects={path: (files[path].object_id, files[path].size_bytes) for path in wanted},
    )


def named_files(index: RegistryIndex) -> dict[str, str]:
    """Path -> sha256 of every file that the index vouches for."""
    found = {}
    for name, entry in index.recipes.items():
        for version, item in entry.versions.items():
            found[recipe_path(name, version)] = item.sha256
            if item.lock_sha256:
                found[lock_path(name, version)] = item.lock_sha256
    return found


def _check_named(wanted: Mapping[str, str], files: Mapping[str, TreeFile], name: str) -> None:
    for path in wanted:
        if path not in files:
            raise RegistryRefused(f"registry {name}: its index must name files that it has, got {path}.")
    for path in files:
        if path.startswith("recipes/") and path not in wanted:
            raise RegistryRefused(f"registry {name}: {path} must be in its index, it is not.")


def _compare(made: Registry, index: RegistryIndex, before: RegistryIndex | None) -> Change:
    new, old = _versions(index), _versions(before) if before else set()
    return Change(
        registry=made,
        num_recipes=len(index.recipes),
        is_new_commit=True,
        added=tuple(sorted(new - old)) if before else (),
        removed=tuple(sorted(old - new)),
    )


def _versions(index: RegistryIndex) -> set[str]:
    return {f"{name} {version}" for name, entry in index.recipes.items() for version in entry.versions}
