"""Options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe", "-r", metavar="NAME|FILE", help="Recipe: a shipped name, a YAML file or @registry/name."
    ),
]
TopologyOption = Annotated[
    str | None,
    typer.Option(
        "--topology", "-t", metavar="FILE", help="Topology file. Default: ~/.config/sparkctl/topology.yaml."
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="NAME", help="Profile of the recipe, such as interactive or batch."),
]
NodesOption = Annotated[
    int | None, typer.Option("--nodes", "-n", metavar="N", min=1, help="How many nodes: 1 to 4.")
]
PortOption = Annotated[
    int | None, typer.Option("--port", metavar="PORT", min=1, max=65535, help="Port of the API.")
]
RunOption = Annotated[
    str | None, typer.Option("--run", metavar="RUN_ID", help="The run; default: the one that is open.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
AcceptKeysOption = Annotated[
    bool,
    typer.Option("--accept-new-host-keys", help="Accept and remember the SSH host key of a node seen first."),
]
