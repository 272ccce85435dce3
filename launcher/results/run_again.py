"""Run the benchmark of a manifest once more, with the settings that it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from launcher.errors import ConfigError, ResultWrong, UsageError
from launcher.results.manifest import Manifest, resolve
from launcher.results.reproduce_run import same_recipe
from launcher.results.verify_run import VerifiedRun

if TYPE_CHECKING:
    from launcher.bench.endpoint import Endpoint
    from launcher.bench.settings import BenchSettings


def run_again(
    first: VerifiedRun, output: Path | None, endpoint: Endpoint, tell: Callable[[str], None]
) -> Path:
    """Returns the directory of the second run. Raises before anything is sent where the inputs differ."""
    from launcher.bench.run_bench import Bench
    from launcher.bench.run_folder import RunFolder
    from launcher.connect import SshOptions

    settings = settings_of(first.manifest)
    if settings.after_restart:
        raise UsageError(
            "a run with a round after a restart must be repeated in two steps, got one: nobody restarts the"
            " server in between",
            hint="the same `sparkctl bench` once more, with its --resume DIR --after-restart; then: sparkctl"
            f" results reproduce {first.directory} --against DIR",
        )
    refuse_other_inputs(first.manifest, endpoint)
    directory = output or next_directory(first.directory)
    tell(f"the same again into {directory}")
    bench = Bench(
        folder=RunFolder.create(directory, settings),
        endpoint=endpoint,
        options=SshOptions(),
        tell=tell,
        on_wave=lambda wave, records, seconds: tell(f"{wave.name}: {len(records)} requests, {seconds:.1f} s"),
        on_plan=lambda total, done: tell(f"{total} waves"),
    )
    bench.run()
    return directory


def settings_of(manifest: Manifest) -> BenchSettings:
    """Raises ResultWrong where this version of sparkctl does not know such settings."""
    from launcher.bench.settings import BenchSettings

    try:
        return BenchSettings.model_validate(manifest.settings)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise ResultWrong(
            f"the manifest's settings must be those of this version, got {key}: {first['msg']}",
            hint=f"use the sparkctl that wrote it: {manifest.versions.sparkctl}",
        ) from error


def refuse_other_inputs(manifest: Manifest, endpoint: Endpoint) -> None:
    """The running cluster must serve the same model from the same recipe. Raises UsageError."""
    if endpoint.model != manifest.served_model:
        raise UsageError(
            f"the endpoint must serve {manifest.served_model!r}, got {endpoint.model!r}",
            hint="start the cluster of that run: sparkctl up --recipe NAME",
        )
    if manifest.recipe is None:
        return
    if endpoint.record is None:
        raise UsageError(
            f"the run must be repeated on a cluster of recipe {manifest.recipe.name}, got another endpoint",
            hint=f"sparkctl up --recipe {manifest.recipe.name}",
        )
    from launcher.compose_recipe import load_recipe

    recipe, _ = load_recipe(endpoint.record.plan.recipe, profile=endpoint.record.plan.profile)
    if not same_recipe(manifest.recipe, resolve(recipe.name, recipe.model_dump(mode="json"))):
        raise ConfigError(
            f"the cluster must run recipe {manifest.recipe.name} ({manifest.recipe.sha256[:12]}),"
            f" got {recipe.name} with other values",
            hint="write the manifest's recipe.content to a file, and: sparkctl up --recipe FILE",
        )


def next_directory(first: Path) -> Path:
    """DIR-again-1, or the next number that is free."""
    number = 1
    while os.path.lexists(first.with_name(f"{first.name}-again-{number}")):
        number += 1
    return first.with_name(f"{first.name}-again-{number}")
