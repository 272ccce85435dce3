"""Pure: what must hold between the keys of a recipe. Found here, before any node is touched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from launcher.config_problem import ConfigProblem
from launcher.environment_rules import environment_problems
from launcher.flag_rules import flag_problems
from launcher.image_digest import DIGEST_FORM, has_digest

if TYPE_CHECKING:
    from launcher.recipe import Recipe

_HOST = re.compile(r"[A-Za-z0-9:._%-]+")

# DeepSeek-V4.1-Flash with its native MXFP4 experts: 286.4 GiB of weights without the Engram tables, and about
# 145 GiB on each of two ranks (https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks: doctor), against
# 121.7 GiB that a GB10 can use.
_V41_REPO = "deepseek-v4.1-flash"
_V41_RANK_GIB = {1: 286.4, 2: 145.0}
_GB10_USABLE_GIB = 121.7


def is_v41(recipe: Recipe) -> bool:
    """True for the native DeepSeek-V4.1-Flash checkpoint, by the last part of its repository or path."""
    for source in (recipe.model.repo, recipe.model.path):
        if source and PurePosixPath(source).name.lower() == _V41_REPO:
            return True
    return False


def recipe_problems(recipe: Recipe) -> list[ConfigProblem]:
    """Everything that is wrong between keys, in the order of the file's sections."""
    return [
        *_model_problems(recipe),
        *_engine_problems(recipe),
        *_parallelism_problems(recipe),
        *_group_problems(recipe),
        *_extension_problems(recipe),
        *_server_problems(recipe),
        *flag_problems(recipe),
        *environment_problems(recipe.environment),
        *_evidence_problems(recipe),
    ]


def path_problem(path: str) -> str:
    """Why a path on a node cannot be used as written; empty when it can."""
    if "$" in path:
        return "must be written out: nothing is expanded but a leading ~, which is the node user's home"
    if "\0" in path or "\n" in path:
        return "must be one line"
    if ".." in PurePosixPath(path).parts:
        return "must not contain '..'"
    if path.startswith("~") and not (path == "~" or path.startswith("~/")):
        return "must not name another user's home"
    return ""


def _model_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    for at, path in (
        (("model", "path"), recipe.model.path),
        (("extensions", "engram", "packed_path"), recipe.extensions.engram.packed_path),
    ):
        reason = path_problem(path) if path else ""
        if reason:
            yield ConfigProblem(at=at, message=f"{'.'.join(at)} {reason}, got {path!r}")
    if recipe.model.revision and not recipe.model.repo:
        yield ConfigProblem(
            at=("model", "revision"),
            message=f"model.revision must come with model.repo, got {recipe.model.revision!r} alone",
            hint="add model.repo, or remove the revision",
        )


def _engine_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    engine = recipe.engine
    if engine.image and engine.runtime != "docker":
        yield ConfigProblem(
            at=("engine", "image"),
            message=f"engine.image must be absent with runtime {engine.runtime}, got {engine.image!r}",
            hint="set engine.runtime to docker, or remove the image",
        )
    if engine.runtime == "docker" and not has_digest(engine.image):
        yield ConfigProblem(
            at=("engine", "image"),
            message=f"engine.image must carry its digest ({DIGEST_FORM}) with runtime docker, "
            f"got {engine.image!r}",
            hint="docker image inspect --format '{{index .RepoDigests 0}}' NAME prints it",
        )


def _parallelism_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    parallel = recipe.parallelism
    num_gpus = recipe.num_ranks
    if parallel.tp * parallel.pp != num_gpus:
        of_group = " of a group" if parallel.groups > 1 else ""
        yield ConfigProblem(
            at=("parallelism", "tp"),
            message=f"parallelism: tp * pp must be nodes{of_group} * gpus_per_node = "
            f"{recipe.nodes_per_group} * "
            f"{parallel.gpus_per_node} = {num_gpus}, got {parallel.tp} * {parallel.pp} = "
            f"{parallel.tp * parallel.pp}",
            hint="set parallelism.tp (or nodes) so that both products agree",
        )
    if parallel.tp % parallel.ep:
        yield ConfigProblem(
            at=("parallelism", "ep"),
            message=f"parallelism.ep must divide tp = {parallel.tp}, got {parallel.ep}",
        )
    yield from _split_problems(recipe)
    if is_v41(recipe):
        yield from _v41_problems(recipe, num_gpus)


def _split_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    parallel = recipe.parallelism
    if parallel.sequence_parallel == "off":
        return
    if parallel.tp == 1:
        yield ConfigProblem(
            at=("parallelism", "sequence_parallel"),
            message=f"parallelism.sequence_parallel must be off with one rank, got "
            f"{parallel.sequence_parallel!r}",
        )
    elif parallel.sequence_parallel_from < parallel.tp**2:
        yield ConfigProblem(
            at=("parallelism", "sequence_parallel_from"),
            message=f"parallelism.sequence_parallel_from must be {parallel.tp**2} or more, so that each of "
            f"{parallel.tp} ranks has a row, got {parallel.sequence_parallel_from}",
        )


def _group_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    parallel = recipe.parallelism
    if parallel.nodes % parallel.groups:
        yield ConfigProblem(
            at=("parallelism", "groups"),
            message=f"parallelism.groups must divide nodes = {parallel.nodes}, got {parallel.groups}",
        )
    if parallel.groups > 1 and recipe.router is None:
        yield ConfigProblem(
            at=("router",),
            message=f"router must be set for {parallel.groups} groups, got none",
            hint="write router: {} for its defaults",
        )
    if parallel.groups > 1 and recipe.engine.runtime == "docker":
        yield ConfigProblem(
            at=("parallelism", "groups"),
            message=f"parallelism.groups must be 1 with engine.runtime docker, got {parallel.groups}: "
            "the router runs in the engine's environment on the node",
            hint="set engine.runtime to venv",
        )
    if parallel.groups == 1 and recipe.router is not None:
        yield ConfigProblem(
            at=("router",),
            message="router must be absent for one group",
            hint="set parallelism.groups, or remove the router",
        )


def _v41_problems(recipe: Recipe, num_gpus: int) -> Iterator[ConfigProblem]:
    if recipe.parallelism.pp > 1:
        yield ConfigProblem(
            at=("parallelism", "pp"),
            message=f"parallelism.pp must be 1 for DeepSeek-V4.1-Flash, got {recipe.parallelism.pp}: "
            "SGLang refuses pipeline parallelism for this model",
        )
    if num_gpus in _V41_RANK_GIB:
        yield ConfigProblem(
            at=("parallelism", "nodes"),
            message="parallelism.nodes must be 3 or more for DeepSeek-V4.1-Flash with native experts, got "
            f"{recipe.nodes_per_group}: its weights need {_V41_RANK_GIB[num_gpus]:.0f} GiB per rank "
            f"against {_GB10_USABLE_GIB} GiB a GB10 can use (286.4 GiB in all without the Engram tables)",
            hint="use v41-flash-3x or v41-flash-4x; two Sparks hold v4-flash-2x",
        )


def _extension_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    dspark = recipe.extensions.dspark
    if dspark.width == "auto" and not dspark.enabled:
        yield ConfigProblem(
            at=("extensions", "dspark", "width"),
            message="extensions.dspark.width must be block without DSpark, got auto",
            hint="set extensions.dspark.enabled: true",
        )
    engram = recipe.extensions.engram
    if engram.residence == "nvme" and not engram.packed_path:
        yield ConfigProblem(
            at=("extensions", "engram", "packed_path"),
            message="extensions.engram.packed_path must name the packed tables with residence nvme, got none",
            hint="set it to the directory under the node's paths.engram that `engram pack` wrote",
        )
    plugins = recipe.environment.get("SGLANG_PLUGINS", "")
    if engram.residence == "nvme" and plugins and "sgl_ext" not in map(str.strip, plugins.split(",")):
        yield ConfigProblem(
            at=("environment", "SGLANG_PLUGINS"),
            message="environment.SGLANG_PLUGINS must name sgl_ext with extensions.engram.residence: nvme,"
            f" got {plugins!r}: stock SGLang reads no packed tables",
            hint="remove SGLANG_PLUGINS, or add sgl_ext to it",
        )
    backend = recipe.extensions.experts.backend
    runner = recipe.server.moe_runner_backend
    if backend != "auto" and runner not in (None, "auto", backend):
        yield ConfigProblem(
            at=("server", "moe_runner_backend"),
            message=f"server.moe_runner_backend must agree with extensions.experts.backend = {backend}, "
            f"got {runner!r}",
            hint="remove server.moe_runner_backend",
        )


def _server_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    server = recipe.server
    if not _HOST.fullmatch(server.host):
        yield ConfigProblem(
            at=("server", "host"),
            message=f"server.host must be an address or a host name, got {server.host!r}",
        )


def _evidence_problems(recipe: Recipe) -> Iterator[ConfigProblem]:
    evidence = recipe.evidence
    if evidence.status == "run" and not (evidence.runs and evidence.hardware):
        yield ConfigProblem(
            at=("evidence", "status"),
            message="evidence.status must be not_run until evidence.runs and evidence.hardware say what was "
            "run, got run",
        )
    for index, run in enumerate(evidence.runs):
        if not run.startswith("results/"):
            yield ConfigProblem(
                at=("evidence", "runs", index),
                message=f"evidence.runs must be paths under results/, got {run!r}",
            )
