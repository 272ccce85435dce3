"""Recipe -> sparkrun v2 YAML, with a report of what that format has no words for."""

from __future__ import annotations

import shlex

import yaml

from launcher.compose_recipe import resolved_values
from launcher.config_problem import dotted
from launcher.recipe import Recipe
from launcher.sparkrun.key_map import DEFAULTS, OPTIONS, VERSION
from launcher.sparkrun.report import NotCarried, expansion_problem

NO_WORDS = "sparkrun has no such key"
AUTO_CHUNK = "sparkctl works it out for the cluster, and SGLang takes a number only"
# Keys that the export writes in other words, or that every recipe has by itself.
_CARRIED = {
    "schema_version", "description", "model.repo", "model.revision", "engine.image", "engine.runtime",
    "engine.sglang_version", "parallelism.nodes", "server.enable_metrics",
}  # fmt: skip


def export_recipe(recipe: Recipe) -> tuple[str, tuple[NotCarried, ...]]:
    """YAML text and report. Every value of the recipe that is no default is in one of them."""
    defaults, left = _defaults(recipe)
    document: dict[str, object] = {"recipe_version": VERSION, "model": recipe.model.repo or recipe.model.path}
    if recipe.model.revision:
        document["model_revision"] = recipe.model.revision
    document |= {"runtime": "sglang", "runtime_version": recipe.engine.sglang_version}
    if recipe.engine.image:
        document["container"] = recipe.engine.image
    nodes = recipe.parallelism.nodes
    document |= {"min_nodes": nodes, "max_nodes": nodes}
    if recipe.description:
        document["metadata"] = {"description": recipe.description}
    flags, left_flags = _flags(recipe)
    environment = {name: text for name, text in recipe.environment.items() if not expansion_problem(text)}
    document |= {"defaults": defaults}
    if environment:
        document["env"] = environment
    document["command"] = _command(defaults, flags)
    report = [*_model_report(recipe), *left, *left_flags, *_rest(recipe)]
    text = yaml.safe_dump(document, sort_keys=False, width=110, allow_unicode=True)
    return text, tuple(report)


def _defaults(recipe: Recipe) -> tuple[dict[str, object], list[NotCarried]]:
    found: dict[str, object] = {}
    left = []
    for key, (section, name) in DEFAULTS.items():
        value = getattr(getattr(recipe, section), name)
        if value is None or key in found:
            continue
        problem = (
            AUTO_CHUNK if (name, value) == ("chunked_prefill_size", "auto") else expansion_problem(value)
        )
        if problem:
            left.append(NotCarried(key=f"{section}.{name}", reason=problem))
        else:
            found[key] = value
    return found, left


def _flags(recipe: Recipe) -> tuple[list[str], list[NotCarried]]:
    """Words of the command. A value that a shell would change is left out and told."""
    words, left = [], []
    for name, value in recipe.server.flags.items():
        values = list(value) if isinstance(value, tuple) else [value]
        texts = [str(item) for item in values if not isinstance(item, bool)]
        problem = next((expansion_problem(text) for text in texts if expansion_problem(text)), "")
        if value is False:
            left.append(NotCarried(key=f"server.flags.{name}", reason="false is the absence of a switch"))
        elif problem or any("{" in text or "\n" in text or text.startswith("--") for text in texts):
            reason = problem or "a command template would read it otherwise"
            left.append(NotCarried(key=f"server.flags.{name}", reason=reason))
        else:
            words += [f"--{name}", *(shlex.quote(text) for text in texts)]
    if recipe.server.enable_metrics:
        words.append("--enable-metrics")
    return words, left


def _command(defaults: dict[str, object], flags: list[str]) -> str:
    option_of: dict[str, str] = {}
    for option, key in OPTIONS.items():
        option_of[key] = option if key not in option_of or option.endswith("-size") else option_of[key]
    words = ["python3 -m sglang.launch_server --model-path {model}"]
    words += [f"--{option_of[key]} {{{key}}}" for key in defaults]
    return " ".join([*words, *flags])


def _model_report(recipe: Recipe) -> list[NotCarried]:
    model, left = recipe.model, []
    if model.repo is None or model.path != model.repo.rpartition("/")[2]:
        reason = "sparkrun finds a model by its repository alone"
        left.append(NotCarried(key="model.path", reason=reason))
    if not recipe.server.enable_metrics:
        left.append(NotCarried(key="server.enable_metrics", reason="a switch that is off has no word"))
    if recipe.engine.runtime == "cpu":
        left.append(NotCarried(key="engine.runtime", reason="sparkrun has no CPU engine"))
    return left


def _rest(recipe: Recipe) -> list[NotCarried]:
    carried = {".".join(path) for path in DEFAULTS.values()} | _CARRIED
    left = []
    for item in resolved_values(recipe, {}):
        key = dotted(item.key)
        if key in carried or key.startswith("server.flags") or key in ("model.path", "name", "extends"):
            continue
        if key.startswith("environment."):
            if expansion_problem(item.value):
                left.append(NotCarried(key=key, reason=expansion_problem(item.value)))
        elif item.value != _default(item.key):
            left.append(NotCarried(key=key, reason=NO_WORDS))
    return left


def _default(path: tuple[str | int, ...]) -> object:
    """Of a recipe that says only what it must."""
    value: object = _LEAST.model_dump(mode="json")
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


_LEAST = Recipe.model_validate({
    "schema_version": 1, "name": "least", "model": {"path": "x"}, "engine": {"runtime": "venv"},
    "parallelism": {"nodes": 1, "tp": 1},
})  # fmt: skip
