"""sparkctl topology init | show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from launcher.cli.options import AcceptKeysOption

if TYPE_CHECKING:
    from launcher.draft_topology import NodeDraft, TopologyDraft

app = typer.Typer(no_args_is_help=True, help="Describe the nodes and the network between them.")

Layout = Literal["switch", "triangle", "pair", "ring"]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


@app.command("init")
def init_topology(
    nodes: Annotated[
        str | None, typer.Option(help="[user@]host[:port] of each node, by commas. Without it: questions.")
    ] = None,
    user: Annotated[str | None, typer.Option(help="Login on all nodes; default: ~/.ssh/config.")] = None,
    identity: Annotated[str | None, typer.Option(help="Private key file; default: agent, ~/.ssh.")] = None,
    layout: Annotated[Layout | None, typer.Option(help="How the nodes are cabled.")] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="File to write, - prints it. Default: ~/.config/sparkctl/topology.yaml."),
    ] = None,
    probe: Annotated[
        bool, typer.Option(help="Ask each node over SSH for its fabric address, interface and HCAs.")
    ] = True,
    accept_new_host_keys: AcceptKeysOption = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write a topology file, by questions or from --nodes; each node is asked for its own ports.

    Without --output it goes where `sparkctl up --recipe NAME` looks for it.
    """
    from launcher.choose_inputs import default_topology_path
    from launcher.draft_topology import TopologyDraft, parse_node_specs
    from launcher.errors import UsageError

    output = output or default_topology_path()
    if output.exists() and not force:
        raise UsageError(f"--output must be a new file, got {output}, which exists.", hint="add --force")
    if nodes is None:
        draft = _ask(user, identity, layout, output)
    else:
        drafts = parse_node_specs(nodes)
        draft = TopologyDraft(
            name=_name_of(output),
            layout=layout or _usual_layout(len(drafts)),
            nodes=drafts,
            user=user,
            identity_file=identity,
        )
    if probe:
        draft = _ask_nodes(draft, accept_new_host_keys=accept_new_host_keys)
    _write(draft, output)


@app.command("show")
def show_topology(
    name: Annotated[
        str | None, typer.Argument(help="A path, or the name of an example.", metavar="TOPOLOGY")
    ] = None,
    local: Annotated[
        int, typer.Option(help="Without TOPOLOGY: number of local stand-ins.", min=1, max=8)
    ] = 3,
    as_json: JsonFlag = False,
) -> None:
    """Every node with the defaults merged in; without TOPOLOGY the embedded local default."""
    from launcher.cli.print_table import print_table
    from launcher.compose_recipe import resolved_values
    from launcher.config_problem import dotted
    from launcher.read_topology import find_topology, read_topology
    from launcher.topology import local_topology
    from launcher.yaml_tree import Provenance

    provenance: Provenance = {}
    if name is None:
        topology = local_topology(local)
        typer.echo(
            "the embedded default of this machine; another by its file or name: sparkctl topology show FILE, "
            "sparkctl topology show spark-3-triangle",
            err=True,
        )
    else:
        topology, provenance = read_topology(find_topology(name))
    if as_json:
        origins = {dotted(value.key): value.origin for value in resolved_values(topology, provenance)}
        document = {"resolved": topology.model_dump(mode="json", by_alias=True), "origins": origins}
        typer.echo(json.dumps(document, indent=2))
        return
    links = topology.links
    typer.echo(f"{topology.name}: {len(topology.nodes)} nodes, {links.layout}, MTU {links.mtu}")
    for cable in links.cables:
        typer.echo(f"cable {cable.from_} - {cable.to}")
    columns = []
    for node in topology.resolved_nodes():
        column = {dotted(value.key): value.value for value in resolved_values(node, {})}
        columns.append(column | {"fabric.socket_interface": node.fabric.bootstrap_interface})
    keys = list(dict.fromkeys(key for column in columns for key in column if key != "name"))
    rows = [(key, *(_cell(column.get(key)) for column in columns)) for key in keys]
    print_table(
        ("rank", *map(str, range(len(columns)))), [("name", *(_cell(c["name"]) for c in columns)), *rows]
    )


def _cell(value: object) -> str:
    if value is None or value == [] or value == {}:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _ask(user: str | None, identity: str | None, layout: Layout | None, output: Path) -> TopologyDraft:
    from dataclasses import replace

    from launcher.draft_topology import TopologyDraft, parse_node_specs

    typer.echo("Nodes in rank order; the first one is the head and serves the API.")
    drafts = parse_node_specs(typer.prompt("Nodes ([user@]host[:port], by commas)"))
    if user is None:
        user = (
            typer.prompt("User on all nodes (empty: ~/.ssh/config)", default="", show_default=False) or None
        )
    if identity is None:
        identity = typer.prompt("Private key (empty: agent, ~/.ssh)", default="", show_default=False) or None
    if layout is None:
        layout = typer.prompt("Cabling (switch, pair, triangle, ring)", default=_usual_layout(len(drafts)))
    filled: list[NodeDraft] = []
    for draft in drafts:
        address = typer.prompt(f"{draft.name}: fabric address (empty: later)", default="", show_default=False)
        interface = typer.prompt(
            f"{draft.name}: fabric interface (empty: later)", default="", show_default=False
        )
        filled.append(replace(draft, address=address or None, interface=interface or None))
    return TopologyDraft(
        name=_name_of(output), layout=str(layout), nodes=tuple(filled), user=user, identity_file=identity
    )


def _ask_nodes(draft: TopologyDraft, *, accept_new_host_keys: bool) -> TopologyDraft:
    """Complete the draft with what every node says about itself.
    An error of a node ends it: nothing is written.
    """
    from launcher.connect import SshOptions
    from launcher.errors import SparkctlError
    from launcher.probe_draft import probe_draft

    typer.echo(f"asking {len(draft.nodes)} node(s) for their ports ...", err=True)
    try:
        return probe_draft(draft, SshOptions(accept_new_host_keys=accept_new_host_keys))
    except SparkctlError as error:
        error.hint += "; or write the file without asking: add --no-probe"
        raise


def _make_directory(path: Path) -> None:
    from launcher.errors import UsageError

    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--output must be in a directory that can be made, got {path}: {error.strerror}.",
            hint="choose another --output, or - to print the file",
        ) from error


def _usual_layout(num_nodes: int) -> Layout:
    return "pair" if num_nodes == 2 else "switch"


def _name_of(output: Path) -> str:
    return output.stem if output.suffix in (".yaml", ".yml") else "cluster"


def _write(draft: TopologyDraft, output: Path) -> None:
    from launcher.draft_topology import render_topology
    from launcher.parse_yaml import parse_yaml
    from launcher.read_topology import inherit_defaults
    from launcher.read_yaml import check_tree
    from launcher.topology import Topology
    from launcher.write_file import write_file

    text = render_topology(draft)
    # What was said must be right before it is kept, even where something else is still missing.
    check_tree(inherit_defaults(parse_yaml(render_topology(draft.with_stand_ins()), str(output))), Topology)
    missing = draft.missing()
    if str(output) == "-":
        typer.echo(text, nl=False)
    else:
        _make_directory(output.parent)
        write_file(output, text)
        typer.echo(f"{output} is written.")
    if missing:
        typer.echo(f"Still to fill in: {', '.join(missing)}.", err=True)
    else:
        typer.echo(f"Next: sparkctl topology show {output}", err=True)
