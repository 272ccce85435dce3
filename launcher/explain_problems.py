"""What is wrong with a file as one ConfigError: a line per problem, with place, value seen and hint."""

from __future__ import annotations

import difflib
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel, ValidationError

from launcher.config_problem import ConfigProblem, KeyPath, dotted
from launcher.errors import ConfigError
from launcher.yaml_tree import Origin, YamlTree, step_into

_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "bool_type": "true or false",
    "dict_type": "a map of keys",
    "model_type": "a map of keys",
    "model_attributes_type": "a map of keys",
    "tuple_type": "a list",
    "list_type": "a list",
}
_BOUNDS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "{} or less"),
    "string_pattern_mismatch": ("pattern", "text that matches {}"),
    "too_short": ("min_length", "a list of at least {}"),
    "too_long": ("max_length", "a list of at most {}"),
}


@dataclass(frozen=True, slots=True)
class ProblemLine:
    """`message` without full stop, `where` = file:line:column."""

    message: str
    where: str
    hint: str = ""


# int() takes at most 4300 digits, and a hint that long helps nobody.
SHORT_NUMBER = re.compile("[0-9]{1,18}")


def config_error(file: str, lines: Sequence[ProblemLine]) -> ConfigError:
    """One error for all of them; lines that say the same are said once."""
    unique = list(dict.fromkeys(lines))
    if len(unique) == 1:
        line = unique[0]
        return ConfigError(f"{line.message} ({line.where}).", hint=line.hint)
    texts = [f"  {line.message} ({line.where}).{_hint_sentence(line.hint)}" for line in unique]
    return ConfigError(f"{file} has {len(unique)} problems:\n" + "\n".join(texts))


def _hint_sentence(hint: str) -> str:
    if not hint:
        return ""
    return f" Hint: {hint}" if hint.endswith("?") else f" Hint: {hint}."


def explain_validation(error: ValidationError, tree: YamlTree, model: type[BaseModel]) -> ConfigError:
    """Every pydantic error with the place in the file, what was expected, what was seen and a close match."""
    lines: list[ProblemLine] = []
    for entry in error.errors(include_url=False):
        lines.extend(_explain_entry(typing.cast("Mapping[str, typing.Any]", entry), tree, model))
    return config_error(tree.file, lines)


def _explain_entry(
    entry: Mapping[str, typing.Any], tree: YamlTree, model: type[BaseModel]
) -> Iterator[ProblemLine]:
    loc: KeyPath = tuple(entry["loc"])
    kind, context = entry["type"], entry.get("ctx", {})
    if kind == "config_problems":
        problems: tuple[ConfigProblem, ...] = context["problems"]
        for problem in problems:
            where = nearest_origin(tree, (*loc, *problem.at))
            yield ProblemLine(problem.message, str(where), problem.hint)
        return
    if kind == "missing":
        yield ProblemLine(f"{dotted(loc)} must be set, got nothing", str(nearest_origin(tree, loc)))
        return
    path = _written_path(tree, loc)
    origin = nearest_origin(tree, path)
    name = dotted(origin.key) if path in tree.origins else dotted(path)
    if kind == "extra_forbidden":
        known = known_keys(model, path[:-1])
        hint = _close_key(str(path[-1]), known, model)
        yield ProblemLine(f"{name} must be a known key, got {str(path[-1])!r}", str(origin), hint)
        return
    seen = entry["input"]
    if kind in ("too_short", "too_long"):
        num_items = len(seen)
        if num_items >= context.get("min_length", 0) and num_items <= context.get("max_length", num_items):
            return  # pydantic counts only the items that are right, and those have their own lines
        yield ProblemLine(f"{name} must be {_wanted(kind, context, '')}, got {num_items}", str(origin))
        return
    if len(loc) > len(path):  # every member of a union was tried
        wanted, seen = "text, a number, true, false or a list of these", _value_at(tree, path)
    else:
        wanted = _wanted(kind, context, entry["msg"])
    hint = _value_hint(kind, context, seen, origin)
    yield ProblemLine(f"{name} must be {wanted}, got {show_value(seen)}", str(origin), hint)


def _wanted(kind: str, context: Mapping[str, typing.Any], message: str) -> str:
    if kind in _WANTED:
        return _WANTED[kind]
    if kind in _BOUNDS:
        name, text = _BOUNDS[kind]
        bound = context[name]
        return text.format(f"{bound:g}" if isinstance(bound, float) else bound)
    if kind == "literal_error":
        expected = str(context["expected"])
        return f"one of {expected}" if " or " in expected else expected
    return f"valid ({message})"


def _value_hint(kind: str, context: Mapping[str, typing.Any], seen: object, origin: Origin) -> str:
    key = origin.key[-1] if origin.key else ""
    before = f"{key}: " if isinstance(key, str) else "- "
    if kind == "string_type" and isinstance(seen, (bool, int, float)):
        return f"write it in quotes: {before}{json.dumps(origin.raw or str(seen))}"
    if kind == "bool_type" and isinstance(seen, str) and seen.lower() in ("yes", "on", "no", "off"):
        return f"write {before}{'true' if seen.lower() in ('yes', 'on') else 'false'}"
    if kind in ("int_type", "float_type") and isinstance(seen, str) and SHORT_NUMBER.fullmatch(seen.strip()):
        return f"write it as a plain number: {before}{int(seen)}"
    if kind in ("model_type", "model_attributes_type", "dict_type") and seen is None:
        return "indent keys below it, or remove the line"
    if kind == "literal_error" and isinstance(seen, str):
        choices = [part.strip("' ") for part in str(context["expected"]).replace(" or ", ",").split(",")]
        close = difflib.get_close_matches(seen, choices, n=1, cutoff=0.5)
        return f"did you mean {close[0]}?" if close else ""
    return ""


def show_value(value: object) -> str:
    """A value as it would stand in YAML, cut to one short piece."""
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def nearest_origin(tree: YamlTree, path: KeyPath) -> Origin:
    """Origin of `path`, or of the closest map or list around it."""
    for size in range(len(path), -1, -1):
        if path[:size] in tree.origins:
            return tree.origins[path[:size]]
    return Origin(file=tree.file, line=1, column=1, key=())


def _written_path(tree: YamlTree, loc: KeyPath) -> KeyPath:
    """`loc` without the union members that pydantic appends: the part that exists in the file."""
    size = len(loc)
    while size and loc[:size] not in tree.origins:
        size -= 1
    return loc[:size]


def _value_at(tree: YamlTree, path: KeyPath) -> object:
    value: object = tree.data
    for part in path:
        value = step_into(value, part)
    return value


def known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """Keys that the map at `path` may hold; empty when it takes any."""
    found: type[BaseModel] | None = model
    for part in path:
        if found is None or isinstance(part, int):
            continue
        field = found.model_fields.get(part)
        found = _model_in(field.annotation) if field else None
    return _keys_of(found) if found else []


def _keys_of(model: type[BaseModel]) -> list[str]:
    keys = [field.alias or name for name, field in model.model_fields.items()]
    return keys + list(getattr(model, "file_keys", ()))


def _model_in(annotation: object) -> type[BaseModel] | None:
    """The model class inside Optional[...], tuple[..., ...] and Annotated[...]."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType, tuple, list, typing.Annotated):
        for argument in typing.get_args(annotation):
            found = _model_in(argument)
            if found:
                return found
    return None


def _close_key(seen: str, known: Sequence[str], model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(seen, known, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]}?"
    elsewhere = [path for path in known_paths(model) if path.rsplit(".", 1)[-1] == seen]
    if elsewhere:
        return f"did you mean {elsewhere[0]}?"
    return f"known keys here: {', '.join(known)}" if known else ""


def known_paths(model: type[BaseModel]) -> list[str]:
    """Every key of the model and of the models inside it, dotted."""
    paths: list[str] = []
    for name, field in model.model_fields.items():
        key = field.alias or name
        paths.append(key)
        inner = _model_in(field.annotation)
        if inner:
            paths += [f"{key}.{path}" for path in known_paths(inner)]
    return paths
