"""`sparkctl install`: the engine on every node, from a lock with hashes; without internet on all but one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli import install_caches
from launcher.cli.options import AcceptKeysOption, JsonOption, NodesOption, TopologyOption

if TYPE_CHECKING:
    from launcher.install.install import Installed, RolledBack

app = typer.Typer(invoke_without_command=True)
app.add_typer(install_caches.app, name="caches")


@app.callback()
def install(
    context: typer.Context,
    lock: Annotated[
        str | None,
        typer.Option("--lock", metavar="NAME|FILE", help="NAME==VERSION --hash=sha256:... a line."),
    ] = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    wheels: Annotated[
        str | None, typer.Option("--wheels", metavar="DIR", help="Wheels on the first node: no download.")
    ] = None,
    extension: Annotated[
        str,
        typer.Option(
            "--extension",
            metavar="build|none|FILE",
            help="sparkctl in the engine: built on the first node, none, or a wheel of that node.",
        ),
    ] = "build",
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="Python on the nodes that builds the environment.")
    ] = "python3",
    rollback: Annotated[bool, typer.Option("--rollback", help="Back to the environment before.")] = False,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Build the same environment at paths.engine of every node; the one before stays for --rollback.

    \b
    sparkctl install --lock sglang-0.5.23-aarch64-cp312 --python python3.12
    sparkctl install --rollback
    sparkctl install caches push --from spark-1

    Wheels come to the first node once and from there to the others over the fabric.
    """
    if context.invoked_subcommand is not None:
        return
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.errors import UsageError
    from launcher.install.extension import choose_extension
    from launcher.install.find_lock import read_lock_file
    from launcher.install.install import Install
    from launcher.install.install import install as run_install
    from launcher.install.install import rollback as run_rollback
    from launcher.weights.choose_weights import topology_nodes

    if (lock is None) == (not rollback):
        raise UsageError("one of --lock and --rollback must be given", hint="sparkctl install --lock FILE")
    chosen = topology_nodes(topology, nodes)
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    if lock is None:
        with connect_all(chosen, options) as remotes, NodesProgress() as tell:
            back = run_rollback(chosen, remotes, tell)
        _show_rollback(back, as_json=json)
        return
    job = Install(
        nodes=chosen,
        lock=read_lock_file(lock),
        python=python,
        wheels=wheels,
        extension=choose_extension(extension),
    )
    with connect_all(chosen, options) as remotes, NodesProgress() as tell:
        done = run_install(job, remotes, tell)
    _show_installed(job.lock_id, done, as_json=json)


def _show_rollback(back: dict[str, RolledBack], *, as_json: bool) -> None:
    if as_json:
        import json

        typer.echo(json.dumps({"nodes": {name: item.model_dump() for name, item in back.items()}}, indent=2))
        return
    for name, item in back.items():
        typer.echo(f"ok: {name}: {item.directory}")


def _show_installed(lock_id: str, done: dict[str, Installed], *, as_json: bool) -> None:
    if as_json:
        import json

        nodes = {name: item.model_dump() for name, item in done.items()}
        typer.echo(json.dumps({"lock_id": lock_id, "nodes": nodes}, indent=2))
        return
    for name, item in done.items():
        was = "was there" if item.was_there else "built"
        typer.echo(
            f"ok: {name}: {len(item.packages)} packages {was}, files {item.digest[:12]} ({item.directory})"
        )
