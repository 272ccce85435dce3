"""`sparkctl plan`: print exactly what `up` would run on each node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import (
    AcceptKeysOption,
    JsonOption,
    NodesOption,
    PortOption,
    ProfileOption,
    RecipeOption,
    TopologyOption,
)

if TYPE_CHECKING:
    from launcher.plan import LaunchPlan


def plan(
    nodes: NodesOption = None,
    recipe: RecipeOption = None,
    profile: ProfileOption = None,
    topology: TopologyOption = None,
    port: PortOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the plan here, for `up --plan`.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Plan for this run id instead of a new one.")
    ] = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Print exactly what `up` would run on each node: argv and environment, ready to paste.

    Asks the nodes for facts (paths, GIDs, addresses) and starts nothing. A plan that was written with
    --output is carried out word for word by: sparkctl up --plan FILE
    """
    from launcher.choose_inputs import choose_inputs
    from launcher.connect import SshOptions, connect_all
    from launcher.deployment import deployment_to_json
    from launcher.errors import UsageError
    from launcher.launch_cluster import prepare
    from launcher.plan_groups import nodes_to_reach
    from launcher.plan_rules import RUN_ID_FORM, is_run_id
    from launcher.write_file import write_file

    if run_id is not None and not is_run_id(run_id):
        raise UsageError(
            f"--run-id must be {RUN_ID_FORM}, got {run_id[:80]!r}",
            hint="leave it out: every plan gets its own",
        )
    inputs = choose_inputs(recipe=recipe, profile=profile, topology=topology, nodes=nodes, port=port)
    nodes_asked = nodes_to_reach(inputs.recipe, inputs.topology)
    with connect_all(nodes_asked, SshOptions(accept_new_host_keys=accept_new_host_keys)) as remotes:
        made, _ = prepare(
            inputs.recipe,
            inputs.topology,
            remotes,
            run_id=run_id,
            lock=inputs.lock,
            values=inputs.values,
        )
    text = deployment_to_json(made)
    if output is not None:
        write_file(output, text)
        typer.echo(f"wrote {output}; carry it out with: sparkctl up --plan {output}", err=True)
    if json:
        typer.echo(text, nl=False)
    elif output is None:
        typer.echo(f"# {inputs.how}")
        typer.echo("\n".join(describe_plan(part) for part in made.plans), nl=False)


def describe_plan(made: LaunchPlan) -> str:
    """One block a node; the command can be pasted into a shell on it."""
    import shlex

    from launcher.doctor.engine_python import image_of
    from launcher.read_yaml import show_path

    part = f"{made.part}: " if made.part else ""
    lines = [
        f"# {part}run {made.run_id}, rendezvous {made.rendezvous}, API {made.api.url} on {made.head.name}"
    ]
    if made.api.needs_key:
        lines.append("# the API key is generated at start and passed in a 0600 file (--config), not in argv")
    lines += [f"# up will refuse: {item} is not supported yet" for item in made.not_supported]
    if made.lock is not None:
        lines.append(f"# locked by {show_path(Path(made.lock.file))}, sha256 {made.lock.sha256[:16]}")
        lines += [f"# up will refuse without --unlocked: {item}" for item in made.lock.differences]
    for node in made.nodes:
        where = "this machine" if node.node.connection == "local" else (node.node.ssh.host or node.name)
        ranks = f", rank {', '.join(map(str, node.ranks))}" if node.ranks else ""
        lines += ["", f"# node {node.name} ({where}){ranks}"]
        lines += [f"# note: {note}" for note in node.notes]
        if node.container:
            lines.append(f"# container: this project has not run one; there: docker pull {image_of(node)}")
        lines.append("env -i \\")
        lines += [f"  {name}={shlex.quote(value)} \\" for name, value in node.environment.items()]
        lines.append("  " + shlex.join(node.argv))
    return "\n".join(lines) + "\n"
