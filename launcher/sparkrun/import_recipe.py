"""sparkrun v2 YAML -> recipe. Strings are data: nothing in them is expanded, and no command is run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from launcher.engine_options import engine_options
from launcher.environment_rules import environment_problems
from launcher.errors import ConfigError
from launcher.flag_rules import OWNED_FLAGS
from launcher.parse_yaml import parse_yaml, plain_value
from launcher.read_yaml import check_tree
from launcher.recipe import Recipe
from launcher.registry.reference import is_recipe_name, shown
from launcher.sparkrun.key_map import DEFAULTS, OPTIONS, OWNED_OPTIONS, REASONS, TOP_KEYS, VERSION
from launcher.sparkrun.report import NotCarried, expansion_problem
from launcher.yaml_tree import YamlTree

_REPO = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_SGLANG_VERSION = re.compile(r"v?(\d+\.\d+\.\d+[a-z0-9.+-]*)")
_DIGEST = re.compile(r"[A-Za-z0-9][^\s$`]*@sha256:[0-9a-f]{64}")
_SHELL = re.compile(r"[;&|<>\n]")
_QUOTED = re.compile(r"'[^']*'|\"[^\"\\]*\"")
NO_OPTION = "SGLang has no such option"


@dataclass(slots=True)
class _Import:
    """Under construction: the recipe's tree and the report."""

    source: Mapping[str, object]
    recipe: dict[str, dict[str, object]] = field(default_factory=dict)
    report: list[NotCarried] = field(default_factory=list)

    def put(self, path: tuple[str, str], value: object) -> None:
        self.recipe.setdefault(path[0], {})[path[1]] = value

    def leave(self, key: str, reason: str) -> None:
        self.report.append(NotCarried(key=key, reason=reason))


def import_recipe(text: str, file: str, name: str | None = None) -> tuple[Recipe, tuple[NotCarried, ...]]:
    """Raises ConfigError for what cannot be a recipe for SGLang at all."""
    tree = parse_yaml(text, file)
    made = _Import(source=tree.data)
    _refuse_others(tree.data, file)
    _model(made, file)
    _engine(made)
    _defaults(made)
    _command(made)
    _environment(made)
    _nodes(made)
    _rest(made)
    data = {
        "schema_version": 1,
        "name": _name(made, name, file),
        "description": _description(made),
        **made.recipe,
    }
    recipe = check_tree(YamlTree(file=file, data=data, origins={}), Recipe)
    return recipe, tuple(made.report)


def _refuse_others(source: Mapping[str, object], file: str) -> None:
    seen = source.get("recipe_version")
    if str(seen) != VERSION:
        raise ConfigError(f"recipe_version must be {VERSION}, got {shown(str(seen))} ({file}).")
    runtime = source.get("runtime")
    is_sglang = runtime == "sglang" or (runtime is None and "sglang" in str(source.get("command", "")))
    if not is_sglang:
        raise ConfigError(
            f"runtime must be sglang, got {shown(str(runtime or 'none'))} ({file}).",
            hint="sparkctl serves with SGLang alone; recipes of other runtimes have no counterpart",
        )


def _name(made: _Import, name: str | None, file: str) -> str:
    wanted = name or re.sub(r"\.ya?ml$", "", file.rsplit("/", 1)[-1]).lower()
    if not is_recipe_name(wanted):
        raise ConfigError(
            f"the recipe's name must be like my-recipe, got {shown(wanted)}.", hint="--name NAME"
        )
    return wanted


def _model(made: _Import, file: str) -> None:
    model, revision = made.source.get("model"), made.source.get("model_revision")
    if not isinstance(model, str) or not _REPO.fullmatch(model):
        raise ConfigError(
            f"model must be a repository like owner/name, got {shown(str(model))} ({file}).",
            hint="absolute paths belong to a machine, GGUF files to another engine",
        )
    made.put(("model", "repo"), model)
    made.put(("model", "path"), model.rpartition("/")[2])
    if isinstance(revision, str) and not expansion_problem(revision):
        made.put(("model", "revision"), revision)
    elif revision is not None:
        made.leave("model_revision", expansion_problem(revision) or "it must be text")


def _engine(made: _Import) -> None:
    image, version = made.source.get("container"), made.source.get("runtime_version")
    made.put(("engine", "runtime"), "venv")
    if isinstance(image, str) and _DIGEST.fullmatch(image):
        made.put(("engine", "runtime"), "docker")
        made.put(("engine", "image"), image)
    elif image is not None:
        made.leave("container", expansion_problem(image) or "an image must carry its digest (@sha256:...)")
    match = _SGLANG_VERSION.fullmatch(version) if isinstance(version, str) else None
    if match:
        made.put(("engine", "sglang_version"), match[1])
    elif version is not None:
        made.leave("runtime_version", "it must be like 0.5.23")


def _map(made: _Import, key: str) -> Mapping[str, object]:
    value = made.source.get(key)
    if value is None or isinstance(value, Mapping):
        return value or {}
    made.leave(key, "it must be a map")
    return {}


def _defaults(made: _Import) -> None:
    for key, value in _map(made, "defaults").items():
        _setting(made, f"defaults.{key}", key, value)


def _setting(made: _Import, shown_key: str, key: str, value: object) -> None:
    """One entry of `defaults`, or one option of the command that stands for it."""
    problem = expansion_problem(value)
    if problem or value is None:
        made.leave(shown_key, problem or "it has no value")
    elif key in DEFAULTS:
        _typed(made, shown_key, DEFAULTS[key], value)
    else:
        _flag(made, shown_key, key.replace("_", "-"), value)


def _typed(made: _Import, shown_key: str, path: tuple[str, str], value: object) -> None:
    model = Recipe.model_fields[path[0]].annotation
    assert model is not None
    from pydantic import TypeAdapter, ValidationError

    annotation = model.model_fields[path[1]].rebuild_annotation()
    if path == ("server", "host") and value not in ("127.0.0.1", "0.0.0.0", "localhost", "::", "::1"):
        made.leave(shown_key, "an address of a machine belongs to the topology")
        return
    try:
        TypeAdapter(annotation).validate_python(value, strict=True)
    except ValidationError as error:
        made.leave(shown_key, error.errors()[0]["msg"])
        return
    made.put(path, value)


def _flag(made: _Import, shown_key: str, option: str, value: object) -> None:
    version = str(made.recipe.get("engine", {}).get("sglang_version", "0.5.23"))
    options = engine_options(version)
    if option in OWNED_FLAGS and option != "enable-metrics":
        made.leave(shown_key, "sparkctl writes this option itself")
    elif options is not None and option not in options:
        made.leave(shown_key, NO_OPTION)
    elif value is False:
        made.leave(shown_key, "false means nothing for a switch: leave it out, or name its no- form")
    elif not _fits(value, options[option].kind if options else "value"):
        made.leave(shown_key, "its value is not of the kind that the option takes")
    elif option == "enable-metrics":
        made.put(("server", "enable_metrics"), True)
    else:
        flags = made.recipe.setdefault("server", {}).setdefault("flags", {})
        assert isinstance(flags, dict)
        flags[option] = value


def _fits(value: object, kind: str) -> bool:
    if kind == "switch":
        return value is True
    scalar = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    return scalar or (
        kind == "list" and isinstance(value, list) and all(isinstance(v, (int, float, str)) for v in value)
    )


def _command(made: _Import) -> None:
    command = made.source.get("command")
    if command is None:
        return
    if not isinstance(command, str):
        made.leave("command", "it must be text")
        return
    joined = command.replace("\\\n", " ").strip()
    problem = expansion_problem(joined)
    if problem or _SHELL.search(_QUOTED.sub("", joined)):
        made.leave("command", problem or "it is more than one command: nothing is given to a shell")
        return
    try:
        words = shlex.split(joined)
    except ValueError as error:
        made.leave("command", f"it is no command line: {error}")
        return
    for option, values in _options(words):
        _option(made, option, values)


def _options(words: list[str]) -> Iterator[tuple[str, list[str]]]:
    """--name with the words up to the next one. What stands before the first is the program."""
    option, values = "", list[str]()
    for word in words:
        if word.startswith("--"):
            if option:
                yield option, values
            name, is_joined, value = word[2:].partition("=")
            option, values = name, [value] if is_joined else []
        else:
            values.append(word)
    if option:
        yield option, values


def _option(made: _Import, option: str, values: list[str]) -> None:
    """An option that repeats one of `defaults` by its {placeholder} adds nothing."""
    if option in OWNED_OPTIONS:
        return
    shown_key = f"command: --{option}"
    defaults = _map(made, "defaults")
    filled = [defaults.get(word[1:-1], word) if re.fullmatch(r"\{\w+\}", word) else word for word in values]
    if len(values) == 1 and values[0] == "{" + OPTIONS.get(option, option.replace("-", "_")) + "}":
        if OPTIONS.get(option, option.replace("-", "_")) not in defaults:
            made.leave(shown_key, f"its placeholder {values[0]} has no default")
        return
    read = plain_value if option in OPTIONS else _word
    given: list[object] = [read(word) if isinstance(word, str) else word for word in filled]
    value: object = True if not given else given[0] if len(given) == 1 else given
    if option in OPTIONS:
        _setting(made, shown_key, OPTIONS[option], value)
    elif (problem := expansion_problem(str(value))) != "":
        made.leave(shown_key, problem)
    else:
        _flag(made, shown_key, option, value)


def _word(text: str) -> object:
    """A number where it is written as numbers are: the engine must get the same characters again."""
    value = plain_value(text)
    return value if isinstance(value, (int, float)) and str(value) == text else text


def _environment(made: _Import) -> None:
    kept = {}
    for name, value in _map(made, "env").items():
        text = (
            value if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
        )
        problems = environment_problems({name: text})
        if value is None or isinstance(value, (Mapping, list)):
            made.leave(f"env.{name}", "it must be text")
        elif expansion_problem(text):
            made.leave(f"env.{name}", expansion_problem(text))
        elif problems:
            made.leave(f"env.{name}", problems[0].hint or problems[0].message)
        else:
            kept[name] = text
    if kept:
        made.recipe["environment"] = dict(kept)


def _nodes(made: _Import) -> None:
    nodes = made.source.get("min_nodes")
    parallel = made.recipe.setdefault("parallelism", {})
    ranks = int(str(parallel.get("tp", 1))) * int(str(parallel.get("pp", 1)))
    if not isinstance(nodes, int) or isinstance(nodes, bool):
        if nodes is not None:
            made.leave("min_nodes", "it must be a number")
        nodes = ranks
    parallel["nodes"] = nodes
    parallel.setdefault("tp", nodes)
    if nodes > 0 and ranks > nodes and ranks % nodes == 0:
        parallel["gpus_per_node"] = ranks // nodes
    if "max_nodes" in made.source and made.source["max_nodes"] != nodes:
        made.leave("max_nodes", REASONS["max_nodes"])


def _description(made: _Import) -> str:
    for key in _map(made, "metadata"):
        if key != "description":
            made.leave(f"metadata.{key}", "a recipe has no such key")
    text = _map(made, "metadata").get("description", "")
    if not isinstance(text, str) or not text.isprintable():
        made.leave("metadata.description", "it must be one printable line")
        return ""
    return text


def _rest(made: _Import) -> None:
    for key in made.source:
        if key not in TOP_KEYS:
            made.leave(key, "it is no key of sparkrun v2 that sparkctl knows")
        elif key in REASONS and key != "max_nodes":
            made.leave(key, REASONS[key])
        elif key == "name":
            made.leave(key, "a recipe's name is that of its file, or --name")
