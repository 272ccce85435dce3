"""Pure: what may stand under server.flags, and which values the typed server keys may take."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from launcher.config_problem import ConfigProblem
from launcher.engine_options import EngineOption, engine_options
from launcher.forbidden_settings import forbidden_options

if TYPE_CHECKING:
    from launcher.recipe import FlagValue, Recipe

# Typed key under `server` -> the engine's option, without dashes.
TYPED_FLAGS: Mapping[str, str] = {
    "dtype": "dtype",
    "context_length": "context-length",
    "max_total_tokens": "max-total-tokens",
    "mem_fraction_static": "mem-fraction-static",
    "max_running_requests": "max-running-requests",
    "chunked_prefill_size": "chunked-prefill-size",
    "kv_cache_dtype": "kv-cache-dtype",
    "attention_backend": "attention-backend",
    "sampling_backend": "sampling-backend",
    "grammar_backend": "grammar-backend",
    "moe_runner_backend": "moe-runner-backend",
    "fp8_gemm_backend": "fp8-gemm-backend",
    "tool_call_parser": "tool-call-parser",
    "reasoning_parser": "reasoning-parser",
    "random_seed": "random-seed",
    "watchdog_timeout_s": "watchdog-timeout",
    "dist_timeout_s": "dist-timeout",
    "enable_metrics": "enable-metrics",
}

_RUN_OWNED = "nothing: sparkctl chooses it for each run"

# Option -> the key that sets it. The launcher writes these itself, on each node.
OWNED_FLAGS: Mapping[str, str] = {
    "model-path": "model.path",
    "model": "model.path",
    "revision": "model.revision",
    "served-model-name": "model.served_name",
    "host": "server.host",
    "port": "server.port",
    "api-key": "server.api_key",
    "admin-api-key": "server.api_key",
    "nnodes": "parallelism.nodes",
    "tp-size": "parallelism.tp",
    "tensor-parallel-size": "parallelism.tp",
    "tp": "parallelism.tp",
    "pp-size": "parallelism.pp",
    "pipeline-parallel-size": "parallelism.pp",
    "pp": "parallelism.pp",
    "ep-size": "parallelism.ep",
    "expert-parallel-size": "parallelism.ep",
    "ep": "parallelism.ep",
    "speculative-dspark-block-size": "extensions.dspark.block_size",
    "node-rank": _RUN_OWNED,
    "dist-init-addr": _RUN_OWNED,
    "nccl-init-addr": _RUN_OWNED,
    "nccl-port": _RUN_OWNED,
    "config": "the recipe's own keys",
} | {flag: f"server.{key}" for key, flag in TYPED_FLAGS.items()}

_SPECULATIVE_FLAGS = ("speculative-algorithm", "speculative-num-draft-tokens")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def flag_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    """Flags that double a typed key, do not exist, or have a value of the wrong kind."""
    options = engine_options(recipe.engine.sglang_version)
    for name, value in recipe.server.flags.items():
        problem = (
            _name_problem(name)
            or _owned_problem(name, options)
            or _speculative_problem(name, value, recipe)
            or (_option_problem(name, value, options) if options is not None else None)
        )
        if problem is not None:
            yield problem
    if options:
        yield from _typed_choice_problems(recipe, options)
    yield from forbidden_options(recipe)


def _at(name: str) -> tuple[str, ...]:
    return ("server", "flags", name)


def _name_problem(name: str) -> ConfigProblem | None:
    if _NAME.fullmatch(name):
        return None
    return ConfigProblem(
        at=_at(name),
        message=f"server.flags names must be long options without the leading dashes, got {name!r}",
        hint=f"write {name.strip('-').lower().replace('_', '-')}",
    )


def _owned_problem(name: str, options: Mapping[str, EngineOption] | None) -> ConfigProblem | None:
    # The engine's parser also takes abbreviations: --nnode would set --nnodes.
    is_option = options is not None and name in options
    owned = name if name in OWNED_FLAGS else None
    if owned is None and not is_option:
        owned = next((flag for flag in sorted(OWNED_FLAGS) if flag.startswith(name)), None)
    if owned is None:
        return None
    return ConfigProblem(
        at=_at(name),
        message=f"server.flags must not hold {name}, which sparkctl writes itself as --{owned}",
        hint=f"set {OWNED_FLAGS[owned]}" if OWNED_FLAGS[owned] != _RUN_OWNED else f"set {_RUN_OWNED}",
    )


def _speculative_problem(name: str, value: FlagValue, recipe: Recipe) -> ConfigProblem | None:
    if name not in _SPECULATIVE_FLAGS:
        return None
    if not recipe.extensions.dspark.enabled and str(value).upper() != "DSPARK":
        return None
    return ConfigProblem(
        at=_at(name),
        message=f"server.flags must not hold {name} for DSpark, got {value!r}",
        hint="set extensions.dspark.enabled and extensions.dspark.block_size",
    )


def _option_problem(name: str, value: FlagValue, options: Mapping[str, EngineOption]) -> ConfigProblem | None:
    option = options.get(name)
    if option is None:
        close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.6)
        return ConfigProblem(
            at=_at(name),
            message=f"server.flags must be options that this SGLang version has, got {name}",
            hint=f"did you mean {close[0]}?" if close else "see python -m sglang.launch_server --help",
        )
    if value is False and f"no-{name}" in options:
        # Left out, the engine would decide by itself: false must mean false.
        return ConfigProblem(
            at=_at(name),
            message=f"server.flags.{name} must be true or absent, got false",
            hint=f"to turn it off write no-{name}: true",
        )
    wanted = _kind_problem(option, value)
    if wanted:
        return ConfigProblem(at=_at(name), message=f"server.flags.{name} must be {wanted}, got {value!r}")
    values = value if isinstance(value, tuple) else (value,)
    for one in values:
        if option.choices and str(one) not in option.choices:
            return _choice_problem(_at(name), f"server.flags.{name}", str(one), option.choices)
    return None


def _kind_problem(option: EngineOption, value: FlagValue) -> str:
    if option.kind == "switch":
        return "" if isinstance(value, bool) else "true or false"
    if isinstance(value, bool):
        return "a value (this option is no switch; quote true or false when it is the value)"
    if option.kind == "value" and isinstance(value, tuple):
        return "one value, not a list"
    return ""


def _typed_choice_problems(recipe: Recipe, options: Mapping[str, EngineOption]) -> Iterator[ConfigProblem]:
    for key, flag in TYPED_FLAGS.items():
        value = getattr(recipe.server, key)
        option = options.get(flag)
        if isinstance(value, str) and option and option.choices and value not in option.choices:
            yield _choice_problem(("server", key), f"server.{key}", value, option.choices)


def _choice_problem(at: tuple[str, ...], what: str, seen: str, choices: tuple[str, ...]) -> ConfigProblem:
    close = difflib.get_close_matches(seen, choices, n=1, cutoff=0.6)
    return ConfigProblem(
        at=at,
        message=f"{what} must be one of {', '.join(choices)}, got {seen!r}",
        hint=f"did you mean {close[0]}?" if close else "",
    )
