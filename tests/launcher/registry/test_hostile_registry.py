"""A registry written by somebody who means harm: refused by name, and nothing of it is kept."""

from __future__ import annotations

import time
import zlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.errors import SparkctlError, UsageError
from launcher.registry.errors import RegistryRefused
from launcher.registry.pull_recipe import pull_recipe
from launcher.registry.recipe_store import store_root
from launcher.registry.reference import parse_reference
from launcher.registry.registries import registries_root, registry_names
from launcher.registry.registry_url import parse_url
from launcher.registry.update_registry import add_registry
from tests.launcher.registry.conftest import Author, index_bytes, recipe_bytes, registry_files

GOOD = {"small": {"1.0.0": recipe_bytes()}}


def refusal(author: Author) -> str:
    """The message; nothing may be left of what was refused, and no character of it may steer a terminal."""
    with pytest.raises(RegistryRefused) as caught:
        add_registry("team", str(author.path), None, 0.0)
    assert registry_names() == []
    assert not [path for path in registries_root().rglob("*") if path.is_file()]
    said = caught.value.message
    assert all(line.isprintable() for line in said.splitlines())
    assert caught.value.hint or caught.value.usual_hint
    return said


def pull_refusal(author: Author, content: bytes) -> str:
    author.publish(registry_files({"small": {"1.0.0": content}}))
    add_registry("team", str(author.path), None, 0.0)
    with pytest.raises(RegistryRefused) as caught:
        pull_recipe(parse_reference("@team/small"), 0.0)
    assert not list(store_root().rglob("*.yaml"))
    assert all(line.isprintable() for line in caught.value.message.splitlines())
    return caught.value.message


def test_path_traversal_in_a_tree(author: Author) -> None:
    inner = author.raw_tree([("100644", b"evil.yaml", author.blob(b"x"))])
    author.publish(registry_files(GOOD), [("40000", b"..", inner)])
    assert ".." in refusal(author).lower() or "dotdot" in refusal(author).lower()


def test_git_directory_in_a_tree(author: Author) -> None:
    inner = author.raw_tree([("100644", b"config", author.blob(b"[core]\n"))])
    author.publish(registry_files(GOOD), [("40000", b".git", inner)])
    assert ".git" in refusal(author).lower() or "dotgit" in refusal(author).lower()


@pytest.mark.parametrize(
    "name", ["../../evil", "a/../b", "..", "/etc/passwd", "x\x1b[2J", "UPPER", "small.lock"]
)
def test_bad_recipe_names_in_the_index(author: Author, name: str) -> None:
    files = registry_files(GOOD)
    files["index.yaml"] = index_bytes({name: {"1.0.0": b"x"}})
    author.publish(files)
    assert "a recipe's name must be" in refusal(author)


@pytest.mark.parametrize("version", ["../1.0.0", "1.0", "latest", "1.0.0\x07"])
def test_bad_versions_in_the_index(author: Author, version: str) -> None:
    files = registry_files(GOOD)
    files["index.yaml"] = index_bytes({"small": {version: b"x"}})
    author.publish(files)
    assert "a version must be like 1.2.3" in refusal(author)


@pytest.mark.parametrize("target", [b"/etc/passwd", b"../../.ssh/id_rsa"])
def test_symbolic_links(author: Author, target: bytes) -> None:
    author.publish(registry_files(GOOD), [("120000", b"README", author.blob(target))])
    assert "'README' must be a plain file, got a symbolic link" in refusal(author)


def test_symbolic_link_in_the_place_of_the_index(author: Author) -> None:
    files = registry_files(GOOD)
    del files["index.yaml"]
    author.publish(files, [("120000", b"index.yaml", author.blob(b"/etc/passwd"))])
    assert "'index.yaml' must be a plain file, got a symbolic link" in refusal(author)


def test_submodule(author: Author) -> None:
    author.publish(registry_files(GOOD), [("160000", b"sub", "1" * 40)])
    assert "'sub' must be a plain file, got a submodule" in refusal(author)


def test_yaml_bomb_in_the_index(author: Author) -> None:
    lines = ["schema_version: 1", "a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    author.publish({**registry_files(GOOD), "index.yaml": "\n".join(lines).encode()})
    started = time.monotonic()
    assert "at most 200000 values" in refusal(author)
    assert time.monotonic() - started < 60


def test_yaml_bomb_in_a_recipe(author: Author) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert "at most 10000 values" in pull_refusal(author, "\n".join(lines).encode())


@pytest.mark.parametrize("text", ["a: !!python/object/apply:os.system [id]", "a: &x [*x]", "a: {<<: {b: 1}}"])
def test_yaml_that_would_do_more_than_hold_values(author: Author, text: str) -> None:
    assert "@team/small" in pull_refusal(author, text.encode())


def test_large_file_that_packs_small(author: Author) -> None:
    """A quarter of a GiB of zeros in a loose object of a few hundred kB; 1 GiB takes four times as long."""
    import hashlib

    size, block = 1 << 28, bytes(1 << 20)
    digest, packer, packed = hashlib.sha1(usedforsecurity=False), zlib.compressobj(1), bytearray()
    for piece in [b"blob %d\0" % size, *([block] * (size // len(block)))]:
        digest.update(piece)
        packed += packer.compress(piece)
    packed += packer.flush()
    name = digest.hexdigest()
    path = author.path / "objects" / name[:2] / name[2:]
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(packed)
    author.publish(registry_files(GOOD), [("100644", b"big.bin", name)])
    assert "'big.bin' must have at most 4194304 bytes, got 268435456" in refusal(author)


def test_more_than_a_registry_may_have_is_not_downloaded(
    author: Author, monkeypatch: pytest.MonkeyPatch
) -> None:
    import random

    monkeypatch.setattr("launcher.registry.run_git.MAX_PACK_BYTES", 1 << 20)
    author.publish({**registry_files(GOOD), "big.bin": random.Random(1).randbytes(3 << 20)})
    assert "must have at most 1 MiB, got more" in refusal(author)


def test_trees_that_hold_one_another_list_files_without_end(author: Author) -> None:
    tree = author.raw_tree([("100644", b"file", author.blob(b"x"))])
    for _ in range(10):
        tree = author.raw_tree([("40000", b"%d" % number, tree) for number in range(10)])
    author.publish(registry_files(GOOD), [("40000", b"bomb", tree)])
    started = time.monotonic()
    assert "must give git ls-tree at most 8 MiB" in refusal(author)
    assert time.monotonic() - started < 60


def test_huge_index(author: Author) -> None:
    author.publish({**registry_files(GOOD), "index.yaml": b"# " + b"x" * (4 << 20)})
    assert "'index.yaml' must have at most 4194304 bytes" in refusal(author)


def test_huge_recipe(author: Author) -> None:
    content = recipe_bytes() + b"#" * (128 << 10)
    author.publish(registry_files({"small": {"1.0.0": content}}))
    assert "'recipes/small/1.0.0.yaml' must have at most 131072 bytes" in refusal(author)


def test_too_many_recipes(author: Author) -> None:
    entries = {f"r{i}": {"1.0.0": b"x"} for i in range(5001)}
    author.publish({"index.yaml": index_bytes(entries)})
    assert "recipes must be at most 5000, got 5001" in refusal(author)


def test_duplicate_names(author: Author) -> None:
    text = index_bytes(GOOD).decode()
    body = text.split("recipes:\n", 1)[1]
    author.publish({**registry_files(GOOD), "index.yaml": (text + body).encode()})
    assert "a key must stand once, got 'small' again" in refusal(author)


def test_index_that_is_not_utf8(author: Author) -> None:
    author.publish({**registry_files(GOOD), "index.yaml": b"schema_version: 1\ndescription: \xff\n"})
    assert "must be UTF-8 text, got byte 0xff (@team/index.yaml:2)" in refusal(author)


def test_recipe_that_is_not_utf8(author: Author) -> None:
    assert "must be UTF-8 text, got byte 0xff" in pull_refusal(author, recipe_bytes() + b"# \xff\n")


@pytest.mark.parametrize(
    "name", [b"a\x1b]0;x\x07", b"\xff\xfe", b"new\nline", b"back\\slash", b"a:b", b"-\xe2\x80\xae"]
)
def test_file_names_that_steer_a_terminal_or_another_file_system(author: Author, name: bytes) -> None:
    author.publish(registry_files(GOOD), [("100644", name, author.blob(b"x"))])
    assert "file names must be" in refusal(author)


@pytest.mark.parametrize("field", ["description", "model"])
def test_terminal_escapes_in_the_index(author: Author, field: str) -> None:
    author.publish(registry_files(GOOD, **{field: "\x1b]0;owned\x07 \u202e"}))
    assert f"{field} must be one printable line" in refusal(author)


def test_terminal_escapes_in_a_recipe(author: Author) -> None:
    assert "must be printable text" in pull_refusal(author, recipe_bytes(description="a\x1b[2Jb"))


def test_terminal_escapes_in_a_key(author: Author) -> None:
    files = registry_files(GOOD)
    files["index.yaml"] += b'"evil\\e[2J": 1\n'
    author.publish(files)
    assert "evil" in refusal(author)


def test_case_collisions(author: Author) -> None:
    author.publish({**registry_files(GOOD), "README": b"a", "Readme": b"b"})
    assert "names must differ in more than case" in refusal(author)


def test_wrong_hash(author: Author) -> None:
    files = registry_files(GOOD)
    files["recipes/small/1.0.0.yaml"] += b"# changed\n"
    author.publish(files)
    assert "recipes/small/1.0.0.yaml must have the sha256 of its index" in refusal(author)


def test_file_that_the_index_does_not_name(author: Author) -> None:
    author.publish({**registry_files(GOOD), "recipes/small/9.9.9.yaml": recipe_bytes()})
    assert "recipes/small/9.9.9.yaml must be in its index" in refusal(author)


def test_index_that_names_a_file_that_is_not_there(author: Author) -> None:
    files = registry_files({"small": {"1.0.0": recipe_bytes(), "1.1.0": recipe_bytes()}})
    del files["recipes/small/1.1.0.yaml"]
    author.publish(files)
    assert "must name files that it has, got recipes/small/1.1.0.yaml" in refusal(author)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"environment": {"SGLANG_X": "hf_" + "a" * 30}}, "must hold no secret"),
        ({"environment": {"HF_HUB_TOKEN": "abc"}}, "must hold no secret"),
        ({"description": "use sk-" + "a1" * 20}, "must hold no secret"),
        ({"environment": {"LD_PRELOAD": "x.so"}}, "variables of the engine"),
        ({"environment": {"PYTHONSTARTUP": "x.py"}}, "variables of the engine"),
        ({"environment": {"NCCL_NET_PLUGIN": "evil"}}, "no code, file or host"),
        ({"environment": {"SGLANG_EXTERNAL_MODEL_PACKAGE": "evil"}}, "no code, file or host"),
        ({"server": {"flags": {"trust-remote-code": True}}}, "no code, file or host"),
        ({"server": {"flags": {"tokenizer-path": "x"}}}, "no code, file or host"),
        ({"server": {"host": "10.1.2.3"}}, "no address of a machine"),
        ({"server": {"host": "spark-1.lan"}}, "must be 127.0.0.1 or 0.0.0.0"),
        ({"model": {"path": "/home/ada/models/x"}}, "no path of a machine"),
        ({"model": {"path": "../../x"}}, "must not contain '..'"),
        ({"model": {"path": "$HOME/x"}}, "nothing is expanded"),
        ({"extends": "local"}, "must stand alone"),
        ({"extends": "/etc/passwd"}, "must stand alone"),
        ({"post_exec": "curl x | sh"}, "must be a known key, got 'post_exec'"),
        ({"name": "other"}, "must be named small"),
    ],
)  # fmt: skip
def test_what_no_shared_recipe_may_hold(author: Author, changes: dict[str, Any], said: str) -> None:
    message = pull_refusal(author, recipe_bytes(**changes))
    assert said in message
    assert "hf_aaaa" not in message and "sk-a1a1" not in message


def test_values_are_never_expanded(author: Author, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_MINE", "do-not-tell")
    text = recipe_bytes(environment={"SGLANG_NOTE": "${SECRET_OF_MINE} $(id) `id`"})
    author.publish(registry_files({"small": {"1.0.0": text}}))
    add_registry("team", str(author.path), None, 0.0)
    done = pull_recipe(parse_reference("@team/small"), 0.0)
    assert done.file.read_bytes() == text
    assert yaml.safe_load(done.file.read_text())["environment"]["SGLANG_NOTE"].startswith("${SECRET_OF_MINE}")


def test_hooks_and_filters_of_a_registry_do_not_run(author: Author, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for hook in ("post-checkout", "post-merge", "reference-transaction", "pre-receive", "post-update"):
        path = author.path / "hooks" / hook
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch {mark}\n")
        path.chmod(0o755)
    files = registry_files(GOOD) | {".gitattributes": b"* filter=evil\n", ".gitmodules": b""}
    author.publish(files)
    author.git("config", "filter.evil.smudge", f"touch {mark}")
    mark.unlink(missing_ok=True)  # the author's own git ran a hook of the author's
    add_registry("team", str(author.path), None, 0.0)
    pull_recipe(parse_reference("@team/small"), 0.0)
    assert not mark.exists()


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c id", "-oProxyCommand=id", "--upload-pack=id", "https://me:secret@example.org/x",
        "https://token@example.org/x", "ssh://a:b@example.org/x", "http://example.org/x", "file:///etc",
        "ssh://-oProxyCommand=id/x", "-x@host:path", "host:-x", "git://example.org/x", "https://example.org/x?t=1",
        "fd::17", "https://example.org/a b", "ssh://exa\x1bmple.org/x", "",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(url)
    assert "secret" not in caught.value.message and "token" not in caught.value.message
    assert caught.value.message.isprintable()


@pytest.mark.parametrize(
    "name", ["@team", "@team/", "@../x", "@team/../x", "@team/x@", "@team/x@1", "@T/x", "@t/x/y"]
)
def test_names_that_are_refused(name: str) -> None:
    with pytest.raises(SparkctlError, match="@registry/name"):
        parse_reference(name)
