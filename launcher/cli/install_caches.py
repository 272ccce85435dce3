"""`sparkctl install caches push`: kernels that one node compiled, on the nodes that are equal to it."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, NodesOption, TopologyOption

app = typer.Typer(no_args_is_help=True, help="Compile caches of Triton, TileLang and FlashInfer.")


@app.callback()
def _caches() -> None:
    """Keeps `push` a word of its own."""


@app.command("push")
def push(
    source: Annotated[str, typer.Option("--from", metavar="NODE", help="Node that has compiled.")],
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="NODE", help="Default: every other node.")
    ] = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Copy compiled kernels to the nodes of the same architecture, GPU, driver and engine; name the others.

    \b
    sparkctl install caches push --from spark-1
    """
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.install.caches import push_caches
    from launcher.weights.choose_weights import Weights, topology_nodes

    chosen = Weights(nodes=topology_nodes(topology, nodes), model_path="", repo=None, revision=None)
    first = chosen.node(source)
    targets = tuple(chosen.node(name) for name in to) if to else chosen.others(first)
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    with connect_all([first, *targets], options) as remotes, NodesProgress() as tell:
        done = push_caches(first, targets, remotes, tell)
    if json:
        import json as json_module

        document = {
            "source": done.source,
            "total_bytes": done.total_bytes,
            "digest": done.digest,
            "nodes": {name: item.model_dump() for name, item in done.received.items()},
            "skipped": done.skipped,
        }
        typer.echo(json_module.dumps(document, indent=2))
        return
    for name, item in done.received.items():
        typer.echo(f"ok: {name}: {item.num_files} files, {item.num_new} new, files {item.digest[:12]}")
    for name, why in done.skipped.items():
        typer.echo(f"skipped: {name}: {why}")
