"""YAML text -> plain values with file, line and column. A small, strict subset of YAML.

Refused: several documents, tags, merge keys, duplicate keys, keys that are not text, tabs as indentation,
anchors that contain themselves, and anything too deep or too large once its anchors are written out.
Scalars follow YAML 1.2: only true and false are booleans, so `off` and `no` are text; 010 and 12:30 are text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from launcher.config_problem import KeyPath
from launcher.errors import ConfigError
from launcher.explain_problems import ProblemLine, config_error
from launcher.yaml_tree import Origin, YamlTree

# Far above any recipe, far below what makes a parser slow: more is a mistake or an attack.
MAX_DEPTH = 20
MAX_VALUES = 10_000

_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_BASED_INT = re.compile(r"0x[0-9a-fA-F]{1,16}|0o[0-7]{1,21}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]{1,3})?")


def parse_yaml(
    text: str, file: str, *, max_values: int = MAX_VALUES, loader: Any = yaml.SafeLoader
) -> YamlTree:
    """Raises ConfigError with file, line and column of everything that is refused. `loader`: SafeLoader or
    CSafeLoader, for files that are large on purpose.
    """
    try:
        _check_events(text, file, max_values, loader)
        node = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise _syntax_error(error, text, file) from error
    if not isinstance(node, MappingNode):
        seen = "an empty file" if node is None else f"a {_kind_of(node)}"
        raise config_error(file, [ProblemLine(f"{file} must hold a map of keys, got {seen}", f"{file}:1:1")])
    build = _Build(file=file, max_values=max_values)
    data = build.value(node, ())
    if build.problems:
        raise config_error(file, build.problems)
    assert isinstance(data, dict)
    return YamlTree(file=file, data=data, origins=build.origins)


def _check_events(text: str, file: str, max_values: int, loader: Any) -> None:
    """Bounds depth and size before anything recursive touches the text."""
    depth = num_values = num_documents = 0
    for event in yaml.parse(text, Loader=loader):
        mark = event.start_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
        if isinstance(event, yaml.DocumentStartEvent):
            num_documents += 1
            if num_documents > 1:
                raise _refuse(file, where, "a file must hold one YAML document, got a second one")
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            depth += 1
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            depth -= 1
        if isinstance(event, (yaml.ScalarEvent, yaml.AliasEvent, yaml.CollectionStartEvent)):
            num_values += 1
        if depth > MAX_DEPTH:
            raise _refuse(file, where, f"keys must nest at most {MAX_DEPTH} deep, got more")
        if num_values > max_values:
            raise _refuse(file, where, f"a file must hold at most {max_values} values, got more")
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise _refuse(file, where, f"values must be plain, without a YAML tag, got {tag!r}")


def _refuse(file: str, where: str, message: str) -> ConfigError:
    return config_error(file, [ProblemLine(message, where)])


def _syntax_error(error: yaml.YAMLError, text: str, file: str) -> ConfigError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    if mark is None:  # ReaderError: a character that YAML does not allow
        position = getattr(error, "position", 0)
        line_no = text.count("\n", 0, position) + 1
        code = ord(text[position]) if position < len(text) else 0
        return _refuse(file, f"{file}:{line_no}", f"text must be printable, got character U+{code:04X}")
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    where = f"{file}:{mark.line + 1}:{mark.column + 1}"
    if re.match(r"\s*\t", line):
        return config_error(
            file,
            [ProblemLine("indentation must be spaces, got a tab", where, "replace the tab by two spaces")],
        )
    problem = str(getattr(error, "problem", None) or error)
    context = getattr(error, "context", None)
    reason = f"{problem} {context}" if context else problem
    return _refuse(file, where, f"{file} must be valid YAML, got an error: {reason}")


def _kind_of(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "map"
    return "list" if isinstance(node, SequenceNode) else "single value"


@dataclass(slots=True)
class _Build:
    """Turns composed nodes into values; anchors are written out, within `max_values`."""

    file: str
    max_values: int
    origins: dict[KeyPath, Origin] = field(default_factory=dict)
    problems: list[ProblemLine] = field(default_factory=list)
    num_values: int = 0
    open_nodes: list[int] = field(default_factory=list)

    def value(self, node: Node, path: KeyPath) -> object:
        self.num_values += 1
        self.origins.setdefault(path, self._origin(node, path))
        if isinstance(node, ScalarNode):
            return plain_value(node.value) if not node.style else node.value
        if id(node) in self.open_nodes:
            self._problem(node, "an anchor must not contain itself, got a loop")
            return None
        if self.num_values > self.max_values or len(path) > MAX_DEPTH:
            raise _refuse(
                self.file,
                self._where(node),
                f"a file must hold at most {self.max_values} values, {MAX_DEPTH} deep, "
                "with anchors written out, got more",
            )
        self.open_nodes.append(id(node))
        made = self._map(node, path) if isinstance(node, MappingNode) else self._list(node, path)
        self.open_nodes.pop()
        return made

    def _map(self, node: MappingNode, path: KeyPath) -> dict[str, object]:
        made: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key is None:
                continue
            if key in made:
                first = self.origins[(*path, key)]
                self._problem(
                    key_node, f"a key must stand once, got {key!r} again (first on line {first.line})"
                )
                continue
            raw = value_node.value if isinstance(value_node, ScalarNode) else None
            self.origins[(*path, key)] = self._origin(key_node, (*path, key), raw)
            made[key] = self.value(value_node, (*path, key))
        return made

    def _list(self, node: Node, path: KeyPath) -> list[object]:
        return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _key(self, node: Node) -> str | None:
        if not isinstance(node, ScalarNode):
            self._problem(node, f"a key must be text, got a {_kind_of(node)}")
            return None
        if not node.style and node.value == "<<":
            self._problem(node, "merge keys (<<) must not be used", "a recipe builds on another with extends")
            return None
        if not node.style and not isinstance(plain_value(node.value), str):
            self._problem(node, f"a key must be text, got {node.value!r}", "write it in quotes")
            return None
        key: str = node.value
        return key

    def _origin(self, node: Node, path: KeyPath, raw: str | None = None) -> Origin:
        mark = node.start_mark
        if raw is None and isinstance(node, ScalarNode):
            raw = node.value
        return Origin(file=self.file, line=mark.line + 1, column=mark.column + 1, key=path, raw=raw)

    def _where(self, node: Node) -> str:
        return f"{self.file}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"

    def _problem(self, node: Node, message: str, hint: str = "") -> None:
        self.problems.append(ProblemLine(message, self._where(node), hint))


def plain_value(text: str) -> str | int | float | bool | None:
    """Value of an unquoted scalar by the YAML 1.2 core rules (no yes/no/on/off, no dates, no base 60)."""
    if text in _NULLS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _BASED_INT.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text) and not text.lstrip("+-").isdigit():
        return float(text)
    return text
