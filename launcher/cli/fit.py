"""`sparkctl fit`: what each rank holds, which recipes fit which number of Sparks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import JsonOption, ProfileOption, RecipeOption, TopologyOption

if TYPE_CHECKING:
    from launcher.fit.fit_recipe import WhatIf
    from launcher.fit.fit_report import MatrixRow
    from launcher.fit.model_shape import ModelShape
    from launcher.recipe import Recipe


def fit(
    recipe: RecipeOption = None,
    profile: ProfileOption = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Read index and headers of this checkpoint."),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="Shape that needs no checkpoint: v41-flash.")
    ] = None,
    topology: TopologyOption = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", "-n", min=1, max=8, help="Try another number of Sparks.")
    ] = None,
    ep: Annotated[
        int | None, typer.Option("--ep", min=1, help="Try another number of expert groups.")
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option("--heads", min=1, help="Attention heads after padding: 72 or 96 on three Sparks."),
    ] = None,
    expert_width: Annotated[
        int | None,
        typer.Option("--expert-width", min=1, help="Expert width per rank after padding: 640 at TP4 EP1."),
    ] = None,
    draft_experts: Annotated[
        int | None, typer.Option("--draft-experts", min=1, help="Draft experts after padding: 129 at EP3.")
    ] = None,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="Longest prompt, in tokens.")
    ] = None,
    chunk: Annotated[int | None, typer.Option("--chunk", min=1, help="Prefill chunk, in tokens.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", min=1, help="KV pool, in tokens.")] = None,
    json: JsonOption = False,
) -> None:
    """Say whether a recipe fits its Sparks, item by item; without a recipe, which ones fit 2, 3 and 4 Sparks.

    Touches no node. The other options try values other than the recipe's. Exit status 5: it does not fit.
    """
    from launcher.errors import UsageError
    from launcher.fit.fit_recipe import WhatIf

    if profile is not None and recipe is None:
        raise UsageError("--profile must come with --recipe", hint="sparkctl fit --recipe v41-flash-3x")
    asked = WhatIf(
        nodes=nodes,
        ep=ep,
        heads=heads,
        expert_width=expert_width,
        draft_experts=draft_experts,
        context_tokens=context,
        chunk_tokens=chunk,
        pool_tokens=tokens,
    )
    shape = _choose_shape(checkpoint, model)
    if recipe is None:
        _show_all(shape, asked, topology, as_json=json)
    else:
        _show_one(recipe, profile, shape, asked, topology, needs_v41=checkpoint is None, as_json=json)


def _choose_shape(checkpoint: Path | None, model: str | None) -> ModelShape:
    from launcher.errors import UsageError
    from launcher.fit.model_shape import checkpoint_shape, shipped_shape

    if checkpoint is not None and model is not None:
        raise UsageError(
            "--checkpoint and --model must not be given together",
            hint="--checkpoint DIR reads the real sizes",
        )
    if checkpoint is not None:
        return checkpoint_shape(checkpoint.expanduser())
    return shipped_shape(model or "v41-flash")


def _show_one(
    name: str,
    profile: str | None,
    shape: ModelShape,
    asked: WhatIf,
    topology: str | None,
    *,
    needs_v41: bool,
    as_json: bool,
) -> None:
    import json

    from launcher.cli.print_table import print_table
    from launcher.compose_recipe import load_recipe
    from launcher.errors import UsageError
    from launcher.fit.fit_recipe import can_fit, fit_recipe
    from launcher.fit.fit_report import budget_rows, fit_document, problem_lines, refusal, verdict_lines

    chosen, _ = load_recipe(name, profile=profile)
    if needs_v41 and chosen.engine.runtime != "cpu" and not can_fit(chosen):
        raise UsageError(
            f"recipe {chosen.name} must serve DeepSeek-V4.1-Flash, got "
            f"{chosen.model.repo or chosen.model.path}: the "
            "sizes of other models are not known here",
            hint="name a DeepSeek-V4.1 checkpoint: sparkctl fit --recipe NAME --checkpoint DIR",
        )
    found = fit_recipe(chosen, shape, asked)
    names = _node_names(topology, found.settings.split.tp)
    if as_json:
        typer.echo(json.dumps(fit_document(found, names), indent=2))
    else:
        typer.echo(f"# {found.shape.origin}")
        head, workers = names[0] if names else "head", ", ".join(names[1:]) or "each worker"
        print_table(("item", f"{head}, B", f"{workers}, B", "formula or source"), budget_rows(found))
        for line in (*verdict_lines(found), *problem_lines(found)):
            typer.echo(line)
    if not found.fits:
        raise refusal(found)


def _show_all(shape: ModelShape, asked: WhatIf, topology: str | None, *, as_json: bool) -> None:
    import json

    from launcher.cli.print_table import print_table
    from launcher.compose_recipe import compose_recipe
    from launcher.errors import UsageError
    from launcher.find_recipe import shipped_recipes
    from launcher.fit.fit_recipe import can_fit
    from launcher.fit.fit_report import CLUSTER_SIZES, fit_document, matrix_rows

    if topology is not None or asked.nodes is not None:
        raise UsageError(
            "--topology and --nodes must come with --recipe", hint="sparkctl fit --recipe v41-flash-3x"
        )
    recipes = [compose_recipe(path)[0] for path in shipped_recipes().values()]
    rows = [_try_sizes(recipe, shape, asked) for recipe in recipes if can_fit(recipe)]
    others = [recipe.name for recipe in recipes if not can_fit(recipe)]
    if as_json:
        document = {
            "shape": shape.origin,
            "recipes": {
                row.recipe: {str(size): fit_document(row.fits[size]) for size in CLUSTER_SIZES}
                for row in rows
            },
            "not_counted": others,
        }
        typer.echo(json.dumps(document, indent=2))
        return
    typer.echo(f"# {shape.origin}; * marks the size a recipe is written for")
    print_table(("recipe", *(f"{size} Sparks" for size in CLUSTER_SIZES)), matrix_rows(rows))
    typer.echo(f"not counted (other model, or CPU engine): {', '.join(others)}")


def _try_sizes(recipe: Recipe, shape: ModelShape, asked: WhatIf) -> MatrixRow:
    import dataclasses

    from launcher.fit.fit_recipe import fit_recipe
    from launcher.fit.fit_report import CLUSTER_SIZES, MatrixRow

    fits = {
        size: fit_recipe(
            recipe, shape, dataclasses.replace(asked, nodes=size if size != recipe.num_ranks else None)
        )
        for size in CLUSTER_SIZES
    }
    return MatrixRow(recipe=recipe.name, own_nodes=recipe.num_ranks, fits=fits)


def _node_names(topology: str | None, num_nodes: int) -> tuple[str, ...]:
    """Names in rank order; none without a topology. Raises UsageError when it has too few nodes."""
    if topology is None:
        return ()
    from launcher.choose_inputs import first_nodes
    from launcher.read_topology import read_topology

    path = Path(topology)
    read, _ = read_topology(path)
    return tuple(node.name for node in first_nodes(read, num_nodes, path).nodes)
