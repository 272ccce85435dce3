"""Run the benchmark of a manifest once more, with the settings that it holds."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from launcher.errors import ConfigError, ResultWrong, UsageError
from launcher.read_yaml import show_path
from launcher.registry.find_lock import lock_of
from launcher.results.manifest import Manifest, resolve
from launcher.results.reproduce_run import same_recipe
from launcher.results.run_directory import LOCK
from launcher.results.verify_run import VerifiedRun
from launcher.run_record import lock_in_effect

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
    refuse_another_lock(first, endpoint)
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
    plan = endpoint.record.plan
    recipe = plan.values
    if recipe is None:
        raise ConfigError(
            f"the cluster must be of this version, got run {plan.run_id}, whose plan lacks the recipe",
            hint=f"sparkctl down --run {plan.run_id}; sparkctl up --recipe {plan.recipe}",
        )
    if not same_recipe(manifest.recipe, resolve(recipe.name, recipe.model_dump(mode="json"))):
        raise ConfigError(
            f"the cluster must run recipe {manifest.recipe.name} ({manifest.recipe.sha256[:12]}),"
            f" got {plan.recipe} with other values",
            hint="write the manifest's recipe.content to a file, and: sparkctl up --recipe FILE",
        )


def refuse_another_lock(first: VerifiedRun, endpoint: Endpoint) -> None:
    """The cluster must be started from the lock of the run, or, as there, from none. Raises ConfigError."""
    wanted, recipe, record = first.manifest.lock_sha256, first.manifest.recipe, endpoint.record
    if recipe is None or record is None:
        return
    started = lock_in_effect(record)
    seen = started.sha256 if started is not None else None
    if wanted == seen:
        return
    planned = record.plan.lock
    place = show_path(Path(planned.file) if planned is not None else lock_of(recipe.name))
    restart = f"sparkctl down; sparkctl up --recipe {recipe.name}"
    if wanted is None:
        hint = f"that run had none: {restart} --unlocked"
    elif (first.directory / LOCK).is_file():
        hint = f"install -D -m 644 {first.directory / LOCK} {place}; {restart}"
    else:
        hint = f"ask who made the run for its lock, put it at {place}; then: {restart}"
    raise ConfigError(
        f"the cluster must be started from the lock of the run ({(wanted or 'none')[:12]}),"
        f" got {(seen or 'none')[:12]}",
        hint=hint,
    )


def next_directory(first: Path) -> Path:
    """DIR-again-1, or the next number that is free."""
    number = 1
    while os.path.lexists(first.with_name(f"{first.name}-again-{number}")):
        number += 1
    return first.with_name(f"{first.name}-again-{number}")
