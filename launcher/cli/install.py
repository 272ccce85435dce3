"""`sparkctl install`: the engine on every node, from a lock with hashes; without internet on all but one."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import AcceptKeysOption, NodesOption, TopologyOption


def install(
    lock: Annotated[
        str | None,
        typer.Option("--lock", metavar="NAME|FILE", help="NAME==VERSION --hash=sha256:... a line."),
    ] = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    wheels: Annotated[
        str | None, typer.Option("--wheels", metavar="DIR", help="Wheels on the first node: no download.")
    ] = None,
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="Python on the nodes that builds the environment.")
    ] = "python3",
    rollback: Annotated[bool, typer.Option("--rollback", help="Back to the environment before.")] = False,
    accept_new_host_keys: AcceptKeysOption = False,
) -> None:
    """Build the same environment at paths.engine of every node; the one before stays for --rollback.

    \b
    sparkctl install --lock sglang-0.5.23-aarch64-cp312
    sparkctl install --rollback

    Wheels come to the first node once and from there to the others over the fabric.
    """
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.errors import UsageError
    from launcher.install.find_lock import read_lock_file
    from launcher.install.install import Install
    from launcher.install.install import install as run_install
    from launcher.install.install import rollback as run_rollback
    from launcher.weights.choose_weights import topology_nodes

    chosen = topology_nodes(topology, nodes)
    if lock is None and not rollback:
        raise UsageError("--lock or --rollback must be given", hint="sparkctl install --lock FILE")
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    with connect_all(chosen, options) as remotes, NodesProgress() as tell:
        if rollback:
            for name, back in run_rollback(chosen, remotes, tell).items():
                typer.echo(f"ok: {name}: {back.directory}")
            return
        assert lock is not None
        text = read_lock_file(lock)
        done = run_install(Install(nodes=chosen, lock=text, python=python, wheels=wheels), remotes, tell)
    for name, item in done.items():
        was = "was there" if item.was_there else "built"
        typer.echo(
            f"ok: {name}: {len(item.packages)} packages {was}, files {item.digest[:12]} ({item.directory})"
        )
