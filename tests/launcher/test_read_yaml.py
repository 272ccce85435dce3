"""Bad YAML of every kind: one clear error with file and line, never a traceback of another type."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Literal

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from pydantic import Field

from launcher.errors import ConfigError
from launcher.frozen_model import FrozenModel, TextTuple
from launcher.parse_yaml import MAX_DEPTH, MAX_VALUES, parse_yaml, plain_value
from launcher.read_yaml import MAX_FILE_BYTES, read_model, read_tree
from launcher.yaml_tree import merge_trees


class Engine(FrozenModel):
    mode: Literal["off", "prefill"] = "off"
    enabled: bool = False
    port: Annotated[int, Field(ge=1, le=65535)] = 30000
    ratio: Annotated[float, Field(gt=0, lt=1)] = 0.5
    names: TextTuple = ()


class Document(FrozenModel):
    title: str
    engine: Engine = Engine()
    labels: dict[str, str] = {}
    engines: Annotated[tuple[Engine, ...], Field(strict=False)] = ()


def write(tmp_path: Path, text: str | bytes, name: str = "file.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refuse(tmp_path: Path, text: str | bytes) -> ConfigError:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        read_model(path, Document)
    assert str(path) in str(caught.value)
    return caught.value


def test_reads_values_and_their_places(tmp_path: Path) -> None:
    path = write(tmp_path, "title: a\nengine:\n  port: 1\n  names: [x,\n    y]\n")
    document, provenance = read_model(path, Document)
    assert document.engine.port == 1
    assert document.engine.names == ("x", "y")
    assert str(provenance["engine", "port"]) == f"{path}:3:3"
    assert str(provenance["engine", "names", 1]) == f"{path}:5:5"
    assert ("engine", "ratio") not in provenance


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "title: a\nengne: {}\n",
            "engne must be a known key, got 'engne' ({file}:2:1).",
            "did you mean engine?",
        ),
        (
            "title: a\nengine:\n  prt: 1\n",
            "engine.prt must be a known key, got 'prt' ({file}:3:3).",
            "did you mean port?",
        ),
        (
            "title: a\nport: 1\n",
            "port must be a known key, got 'port' ({file}:2:1).",
            "did you mean engine.port?",
        ),
        (
            "title: a\nzzz: 1\n",
            "zzz must be a known key, got 'zzz' ({file}:2:1).",
            "known keys here: title, engine, labels, engines",
        ),
        ("engine: {}\n", "title must be set, got nothing ({file}:1:1).", ""),
        ("title: 5\n", "title must be text, got 5 ({file}:1:1).", 'write it in quotes: title: "5"'),
        ("title: 0.50\n", "title must be text, got 0.5 ({file}:1:1).", 'write it in quotes: title: "0.50"'),
        ("title: true\n", "title must be text, got true ({file}:1:1).", 'write it in quotes: title: "true"'),
        ("title:\n", "title must be text, got nothing ({file}:1:1).", ""),
        (
            "title: a\nengine:\n",
            "engine must be a map of keys, got nothing ({file}:2:1).",
            "indent keys below it, or remove the line",
        ),
        (
            "title: a\nengine: {port: three}\n",
            "engine.port must be an integer, got 'three' ({file}:2:10).",
            "",
        ),
        (
            "title: a\nengine: {port: '3'}\n",
            "engine.port must be an integer, got '3' ({file}:2:10).",
            "write it as a plain number: port: 3",
        ),
        ("title: a\nengine: {port: 1.5}\n", "engine.port must be an integer, got 1.5 ({file}:2:10).", ""),
        ("title: a\nengine: {port: 0}\n", "engine.port must be 1 or more, got 0 ({file}:2:10).", ""),
        (
            "title: a\nengine: {port: 70000}\n",
            "engine.port must be 65535 or less, got 70000 ({file}:2:10).",
            "",
        ),
        ("title: a\nengine: {ratio: 1}\n", "engine.ratio must be less than 1, got 1 ({file}:2:10).", ""),
        (
            "title: a\nengine: {enabled: yes}\n",
            "engine.enabled must be true or false, got 'yes' ({file}:2:10).",
            "write enabled: true",
        ),
        (
            "title: a\nengine: {enabled: off}\n",
            "engine.enabled must be true or false, got 'off' ({file}:2:10).",
            "write enabled: false",
        ),
        (
            "title: a\nengine: {mode: prefil}\n",
            "engine.mode must be one of 'off' or 'prefill', got 'prefil' ({file}:2:10).",
            "did you mean prefill?",
        ),
        ("title: a\nengine: {names: x}\n", "engine.names must be a list, got 'x' ({file}:2:10).", ""),
        (
            "title: a\nlabels:\n  A: 1\n",
            "labels.A must be text, got 1 ({file}:3:3).",
            'write it in quotes: A: "1"',
        ),
        (
            "title: a\nengines:\n  - port: 1\n  - port: x\n",
            "engines[1].port must be an integer, got 'x' ({file}:4:5).",
            "",
        ),
        (
            "title: a\ntitle: b\n",
            "a key must stand once, got 'title' again (first on line 1) ({file}:2:1).",
            "",
        ),
        ("[1, 2]\n", "{file} must hold a map of keys, got a list ({file}:1:1).", ""),
        ("text\n", "{file} must hold a map of keys, got a single value ({file}:1:1).", ""),
        ("", "{file} must hold a map of keys, got an empty file ({file}:1:1).", ""),
        ("# only a comment\n", "{file} must hold a map of keys, got an empty file ({file}:1:1).", ""),
        (
            "title: a\nengine:\n\tport: 1\n",
            "indentation must be spaces, got a tab ({file}:3:1).",
            "replace the tab by two spaces",
        ),
        (
            "title: a\nengine:\n  port: 1\n\tratio: 0.5\n",
            "indentation must be spaces, got a tab ({file}:4:1).",
            "replace the tab by two spaces",
        ),
        (
            "title: a\n---\ntitle: b\n",
            "a file must hold one YAML document, got a second one ({file}:2:1).",
            "",
        ),
        (
            "title: !!python/object/apply:os.system ['true']\n",
            "values must be plain, without a YAML tag, got 'tag:yaml.org,2002:python/object/apply:os.system' "
            "({file}:1:8).",
            "",
        ),
        ("title: !mine x\n", "values must be plain, without a YAML tag, got '!mine' ({file}:1:8).", ""),
        (
            "engine: &e {port: 1}\nlabels:\n  <<: *e\n",
            "merge keys (<<) must not be used ({file}:3:3).",
            "a recipe builds on another with extends",
        ),
        ("1: a\n", "a key must be text, got '1' ({file}:1:1).", "write it in quotes"),
        ("[a]: 1\n", "a key must be text, got a list ({file}:1:1).", ""),
        ("title: &t [*t]\n", "an anchor must not contain itself, got a loop ({file}:1:8).", ""),
        ("labels: &l\n  a: {b: *l}\n", "an anchor must not contain itself, got a loop ({file}:1:9).", ""),
    ],
)
def test_refuses_with_place_and_hint(tmp_path: Path, text: str, message: str, hint: str) -> None:
    error = refuse(tmp_path, text)
    assert error.message == message.format(file=tmp_path / "file.yaml")
    assert error.hint == hint
    assert error.exit_code == 3


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("title: [a\n", "must be valid YAML"),
        ("title: 'a\n", "must be valid YAML"),
        ("title: *nothing\n", "undefined alias"),
        ("title: a\n  engine: b\n", "must be valid YAML"),
        ("title: a\x07b\n", "must be printable, got character U+0007"),
        (b"title: \xff\xfe\n", "must be UTF-8 text, got byte 0xff"),
        ("title: a".encode("utf-16"), "must be UTF-8 text"),
        ("[" * 5000, f"keys must nest at most {MAX_DEPTH} deep"),
        ("a: " * 3, "must be valid YAML"),
        ("- x\n" * (MAX_VALUES + 5), f"must hold at most {MAX_VALUES} values"),
        (b"x" * (MAX_FILE_BYTES + 1), f"must be at most {MAX_FILE_BYTES} bytes, got {MAX_FILE_BYTES + 1}"),
    ],
)
def test_refuses_broken_text(tmp_path: Path, text: str | bytes, part: str) -> None:
    assert part in refuse(tmp_path, text).message


def test_refuses_a_bomb_of_anchors_at_once(tmp_path: Path) -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    started = time.monotonic()
    error = refuse(tmp_path, "\n".join(levels))
    assert "with anchors written out" in error.message
    assert time.monotonic() - started < 60


def test_anchors_without_tricks_are_written_out(tmp_path: Path) -> None:
    path = write(tmp_path, "title: a\nengine: &e {port: 7}\nengines: [*e, *e]\n")
    document, _ = read_model(path, Document)
    assert [engine.port for engine in document.engines] == [7, 7]


def test_reports_all_problems_of_a_file_together(tmp_path: Path) -> None:
    error = refuse(tmp_path, "titel: a\nengine:\n  port: x\n  ratio: 2\n")
    file = tmp_path / "file.yaml"
    assert error.message.splitlines() == [
        f"{file} has 4 problems:",
        f"  title must be set, got nothing ({file}:1:1).",
        f"  engine.port must be an integer, got 'x' ({file}:3:3).",
        f"  engine.ratio must be less than 1, got 2 ({file}:4:3).",
        f"  titel must be a known key, got 'titel' ({file}:1:1). Hint: did you mean title?",
    ]


def test_reports_all_doubled_keys_together(tmp_path: Path) -> None:
    error = refuse(tmp_path, "title: a\ntitle: b\nlabels:\n  x: y\n  x: z\n")
    assert "has 2 problems" in error.message


def test_missing_file_lists_what_is_there(tmp_path: Path) -> None:
    write(tmp_path, "title: a\n", "here.yaml")
    with pytest.raises(ConfigError) as caught:
        read_tree(tmp_path / "gone.yaml")
    assert caught.value.message == f"{tmp_path}/gone.yaml must be an existing YAML file, got none."
    assert caught.value.hint == f"{tmp_path} holds here.yaml"
    with pytest.raises(ConfigError, match="must be an existing YAML file"):
        read_tree(tmp_path / "here.yaml" / "below.yaml")
    with pytest.raises(ConfigError) as caught:
        read_tree(tmp_path / "no" / "such" / "gone.yaml")
    assert caught.value.hint == f"{tmp_path} holds here.yaml"


def test_directory_pipe_and_unreadable_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must be a YAML file, got a directory"):
        read_tree(tmp_path)
    os.mkfifo(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="must be a regular file"):
        read_tree(tmp_path / "pipe.yaml")
    with pytest.raises(ConfigError, match="must be a readable YAML file"):
        read_tree(Path("a\0b.yaml"))
    with pytest.raises(ConfigError, match="must be a readable YAML file"):
        read_tree(Path("n" * 5000))


def test_unquoted_off_is_text_and_true_is_a_boolean(tmp_path: Path) -> None:
    document, _ = read_model(write(tmp_path, "title: no\nengine: {mode: off, enabled: true}\n"), Document)
    assert document.title == "no"
    assert document.engine.mode == "off"
    assert document.engine.enabled is True


def test_byte_order_mark_is_no_character(tmp_path: Path) -> None:
    document, _ = read_model(write(tmp_path, b"\xef\xbb\xbftitle: a\n"), Document)
    assert document.title == "a"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("~", None), ("", None), ("true", True), ("False", False), ("yes", "yes"), ("on", "on"), ("12", 12),
        ("-3", -3), ("0x1f", 31), ("0o17", 15), ("010", "010"), ("12:30", "12:30"), ("1_000", "1_000"),
        ("1.5", 1.5), ("1e3", 1000.0), (".5", 0.5), ("2026-09-10", "2026-09-10"),
        (".inf", ".inf"), (".nan", ".nan"),
        ("1" * 40, "1" * 40), ("0.5.23", "0.5.23"), ("0", 0), ("0.0", 0.0),
    ],
)  # fmt: skip
def test_plain_scalars_follow_yaml_1_2(text: str, value: object) -> None:
    seen = plain_value(text)
    assert seen == value
    assert type(seen) is type(value)


def test_merge_keeps_the_place_of_every_value(tmp_path: Path) -> None:
    base = parse_yaml("title: a\nengine:\n  port: 1\n  names: [x, y]\n", "base.yaml")
    over = parse_yaml("engine:\n  names: [z]\n", "over.yaml")
    merged = merge_trees(base, over)
    assert merged.data == {"title": "a", "engine": {"port": 1, "names": ["z"]}}
    places = {path: origin.file for path, origin in merged.origins.items()}
    assert places["title",] == "base.yaml"
    assert places["engine", "port"] == "base.yaml"
    assert places["engine", "names"] == places["engine", "names", 0] == "over.yaml"
    assert ("engine", "names", 1) not in places


YAML_SOUP = st.text(alphabet="ab:-[]{}&*!|>'\"#\t\n ,?%@`~.0<\\\r\x00\u2028\ufeff", max_size=60)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(YAML_SOUP | st.text(max_size=40))
@example("? a\n? b\n")
@example("&a : *a")
@example("a: |\n\tx")
@example("%YAML 9.9\n---\na: b")
@example("{? : }")
def test_any_text_gives_a_tree_or_a_config_error(text: str) -> None:
    try:
        tree = parse_yaml(text, "x.yaml")
    except ConfigError as error:
        assert "x.yaml" in str(error)
    else:
        assert all(isinstance(key, str) for key in tree.data)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80))
def test_any_bytes_give_a_model_or_a_config_error(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    try:
        read_model(path, Document)
    except ConfigError as error:
        assert str(path) in str(error)
