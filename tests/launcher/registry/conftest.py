"""A home of its own for every test, and registries made with the real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

from launcher.registry.registry_index import sha256_of

RECIPE: dict[str, object] = {
    "schema_version": 1,
    "name": "small",
    "description": "A small one",
    "model": {"path": "tiny-qwen3"},
    "engine": {"runtime": "cpu"},
    "parallelism": {"nodes": 2, "tp": 2},
    "server": {"flags": {"device": "cpu"}},
}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own = tmp_path / "home"
    own.mkdir()
    monkeypatch.setenv("HOME", str(own))
    monkeypatch.setenv("XDG_DATA_HOME", str(own / "data"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (own / ".gitconfig").write_text("[user]\n name = Ada\n email = ada@example.org\n")
    return own


class Author:
    """Whoever writes a registry, honest or not: commits any bytes under any names."""

    def __init__(self, directory: Path) -> None:
        self.path = directory
        directory.mkdir(parents=True)
        self.git("init", "--quiet", "--bare", "-b", "main", str(directory))

    def git(self, *words: str, stdin: bytes = b"") -> str:
        who = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        done = subprocess.run(["git", *words], input=stdin, capture_output=True, cwd=self.path, check=True,
                              env={**os.environ, **who})  # fmt: skip
        return done.stdout.decode().strip()

    def blob(self, content: bytes) -> str:
        return self.git("hash-object", "-w", "--stdin", "--no-filters", stdin=content)

    def raw_tree(self, entries: list[tuple[str, bytes, str]]) -> str:
        """Also trees that git itself would not write."""
        ordered = sorted(entries, key=lambda item: item[1] + (b"/" if item[0] == "40000" else b""))
        raw = b"".join(
            mode.encode() + b" " + name + b"\0" + bytes.fromhex(oid) for mode, name, oid in ordered
        )
        return self.git("hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=raw)

    def tree(self, files: dict[str, bytes], extra: list[tuple[str, bytes, str]] | None = None) -> str:
        """`extra`: (mode, name, object) at the root."""
        below: dict[str, dict[str, bytes]] = {}
        entries = list(extra or [])
        for path, content in files.items():
            first, _, rest = path.partition("/")
            if rest:
                below.setdefault(first, {})[rest] = content
            else:
                entries.append(("100644", first.encode(), self.blob(content)))
        entries += [("40000", name.encode(), self.tree(inner)) for name, inner in below.items()]
        return self.raw_tree(entries)

    def commit(self, tree: str) -> str:
        commit = self.git("commit-tree", "-m", "x", tree)
        self.git("update-ref", "refs/heads/main", commit)
        return commit

    def publish(self, files: dict[str, bytes], extra: list[tuple[str, bytes, str]] | None = None) -> str:
        return self.commit(self.tree(files, extra))


@pytest.fixture
def author(tmp_path: Path) -> Author:
    return Author(tmp_path / "registry.git")


def recipe_bytes(name: str = "small", **changes: object) -> bytes:
    return yaml.safe_dump({**RECIPE, "name": name, **changes}, sort_keys=False).encode()


def index_bytes(recipes: dict[str, dict[str, bytes]], **changes: object) -> bytes:
    """name -> version -> content of the file."""
    entries = {
        name: {
            "description": "A small one", "model": "tiny-qwen3", "nodes": 2, "runtime": "cpu",
            "evidence": "not_run",
            "versions": {version: {"sha256": sha256_of(content)} for version, content in versions.items()},
            **changes,
        }
        for name, versions in recipes.items()
    }  # fmt: skip
    return yaml.safe_dump({"schema_version": 1, "recipes": entries}, sort_keys=False, width=200).encode()


def registry_files(recipes: dict[str, dict[str, bytes]], **changes: object) -> dict[str, bytes]:
    files = {"index.yaml": index_bytes(recipes, **changes)}
    for name, versions in recipes.items():
        files |= {f"recipes/{name}/{version}.yaml": content for version, content in versions.items()}
    return files
