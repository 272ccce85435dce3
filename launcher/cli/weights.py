"""`sparkctl weights`: the checkpoint on every node, fetched once, pushed over the fabric, proved whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import AcceptKeysOption, JsonOption, NodesOption, RecipeOption, TopologyOption

if TYPE_CHECKING:
    from launcher.topology import Node
    from launcher.weights.choose_weights import Weights
    from launcher.weights.push import PushResult
    from launcher.weights.verify import NodeWeights

app = typer.Typer(no_args_is_help=True, help="Fetch a checkpoint once, push it to the nodes, verify it.")

ModelPathOption = Annotated[
    str | None,
    typer.Option(
        "--model-path", metavar="PATH", help="Checkpoint on the nodes: absolute, or below paths.models."
    ),
]


@app.command("fetch")
def fetch(
    recipe: RecipeOption = None,
    topology: TopologyOption = None,
    model_path: ModelPathOption = None,
    repo: Annotated[
        str | None, typer.Option("--repo", metavar="ORG/NAME", help="Default: the recipe's.")
    ] = None,
    revision: Annotated[
        str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit.")
    ] = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="DIR", help="Take over a directory of that node instead.")
    ] = None,
    on: Annotated[str | None, typer.Option("--on", metavar="NODE", help="Default: the first node.")] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="Python with huggingface_hub on that node.")
    ] = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Download to one node, or take over what is there; ends well only when every file has its hash.

    \b
    sparkctl weights fetch --recipe v41-flash-3x
    sparkctl weights fetch --recipe v41-flash-3x --from /data/DeepSeek-V4.1-Flash

    What was cut off goes on where it ended.
    """
    from launcher.cli.byte_bars import gib
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.errors import UsageError
    from launcher.weights import fetch as job

    weights = _choose(recipe, topology, None, model_path)
    node = weights.node(on)
    repo = repo or weights.repo
    if source is None and repo is None:
        raise UsageError(
            "the repository to fetch must be named, and the recipe names none",
            hint="sparkctl weights fetch --repo ORG/NAME, or --from DIR",
        )
    with (
        connect_all([node], SshOptions(accept_new_host_keys=accept_new_host_keys)) as remotes,
        NodesProgress() as tell,
    ):
        remote = remotes[node.name]
        if source is not None:
            done = job.adopt(node, weights.model_path, source, remote, tell)
        else:
            asked = job.Fetch(
                node=node,
                model_path=weights.model_path,
                repo=repo or "",
                revision=revision or weights.revision,
                python=python,
            )
            done = job.fetch(asked, remote, tell)
    if json:
        typer.echo(done.model_dump_json(indent=2))
        return
    typer.echo(
        f"ok: {node.name}: {done.num_files} files, {gib(done.total_bytes)}, every sha256 known "
        f"({done.directory})"
    )


@app.command("push")
def push(
    recipe: RecipeOption = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    model_path: ModelPathOption = None,
    source: Annotated[
        str | None, typer.Option("--from", metavar="NODE", help="Node that has it. Default: the first.")
    ] = None,
    to: Annotated[
        list[str] | None, typer.Option("--to", metavar="NODE", help="Default: every other node.")
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option(
            "--leave-out",
            metavar="PART",
            help="engram: shards of Engram rows alone; draft: of the draft. Engram goes by itself on nodes "
            "where the recipe's packed files are there.",
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Everything, also Engram shards beside packed files.")
    ] = False,
    streams: Annotated[int, typer.Option("--streams", min=1, max=16, help="Connections per node.")] = 4,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Copy from one node to the others, node to node, with sha256; what is there by hash is not copied again.

    \b
    sparkctl weights push --recipe v41-flash-3x
    sparkctl weights push --recipe v41-flash-3x --leave-out engram

    Room is checked on every node first. What was cut off goes on where it ended.
    """
    from launcher.cli.byte_bars import gib
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.errors import UsageError
    from launcher.weights.leave_out import LeaveOut, choose_leave_out
    from launcher.weights.push import Push
    from launcher.weights.push import push as run_push

    if whole and leave_out:
        raise UsageError("--whole and --leave-out must not come together", hint="leave one of them away")
    weights = _choose(recipe, topology, nodes, model_path)
    first = weights.node(source)
    targets = tuple(weights.node(name) for name in to) if to else weights.others(first)
    asked = tuple(dict.fromkeys(leave_out or ()))
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    results: dict[str, PushResult] = {}
    with connect_all([first, *targets], options) as remotes, NodesProgress() as tell:
        if whole:
            chosen = LeaveOut(parts={node.name: () for node in targets}, needed_because={})
        else:
            chosen = choose_leave_out(weights, first, targets, asked, remotes, tell)
        for parts, names in chosen.groups().items():
            job = Push(
                source=first,
                targets=tuple(node for node in targets if node.name in names),
                model_path=weights.model_path,
                leave_out=parts,
                num_streams=streams,
            )
            results |= dict.fromkeys(names, run_push(job, remotes, tell))
    if json:
        import json as json_module

        document = {"source": first.name, "nodes": {name: _pushed(name, results[name]) for name in results}}
        typer.echo(json_module.dumps(document, indent=2))
        return
    for name, result in results.items():
        stock, got = result.stocks[name], result.received[name]
        without = f" without {', '.join(result.files.left_out)}" if result.files.left_out else ""
        typer.echo(
            f"ok: {name}: {len(result.files.files)} files{without}, {gib(result.files.total_bytes)}: "
            f"{stock.num_present} were there, {stock.num_linked} linked, {got.num_received} received "
            f"({gib(got.received_bytes)})"
        )
        if why := chosen.needed_because.get(name):
            typer.echo(f"  with the Engram shards: {why}")


def _pushed(name: str, result: PushResult) -> dict[str, object]:
    return {
        "left_out": list(result.files.left_out),
        "num_files": len(result.files.files),
        "total_bytes": result.files.total_bytes,
        **result.stocks[name].model_dump(),
        **result.received[name].model_dump(),
    }


@app.command("verify")
def verify(
    recipe: RecipeOption = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    model_path: ModelPathOption = None,
    quick: Annotated[bool, typer.Option("--quick", help="Sizes and times only, no hashing.")] = False,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Hash every file on every node again and compare with the lists, also among the nodes.

    Exit status 5 unless every node is complete.
    """
    from launcher.errors import PreflightRefused

    found = _states(_choose(recipe, topology, nodes, model_path), quick=quick, accept=accept_new_host_keys)
    _show_states(found, as_json=json)
    bad = [item for item in found if item.state != "complete"]
    if bad:
        hints = "; ".join(dict.fromkeys(item.hint for item in bad if item.hint))
        names = ", ".join(f"{item.node} ({item.state})" for item in bad)
        raise PreflightRefused(f"Every node must have a complete checkpoint, got: {names}.", hint=hints)


@app.command("status")
def status(
    recipe: RecipeOption = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    model_path: ModelPathOption = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Tell for each node: complete, partial, different, absent or unknown. Hashes nothing."""
    found = _states(_choose(recipe, topology, nodes, model_path), quick=True, accept=accept_new_host_keys)
    _show_states(found, as_json=json)


@app.command("drop-cache")
def drop_cache(
    recipe: RecipeOption = None,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    model_path: ModelPathOption = None,
    accept_new_host_keys: AcceptKeysOption = False,
    json: JsonOption = False,
) -> None:
    """Give back the page cache that the checkpoint's files hold; needs no root."""
    from launcher.cli.byte_bars import gib
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.weights.push import values_of
    from launcher.weights.verify import drop_cache as run_drop_cache

    weights = _choose(recipe, topology, nodes, model_path)
    options = SshOptions(accept_new_host_keys=accept_new_host_keys)
    with connect_all(weights.nodes, options) as remotes, NodesProgress() as tell:
        results = run_drop_cache(weights.nodes, remotes, weights.model_path, tell)
    dropped = values_of(results, "drop its page cache")
    if json:
        import json as json_module

        typer.echo(json_module.dumps({name: done.model_dump() for name, done in dropped.items()}, indent=2))
        return
    for name, done in dropped.items():
        typer.echo(
            f"ok: {name}: {done.num_files} files, {gib(done.total_bytes)}; page cache of the node "
            f"{gib(done.cached_before_bytes)} -> {gib(done.cached_after_bytes)}"
        )


def _choose(recipe: str | None, topology: str | None, nodes: int | None, model_path: str | None) -> Weights:
    from launcher.weights.choose_weights import choose_weights

    return choose_weights(recipe=recipe, topology=topology, num_nodes=nodes, model_path=model_path)


def _states(weights: Weights, *, quick: bool, accept: bool) -> list[NodeWeights]:
    from launcher.cli.weights_progress import NodesProgress
    from launcher.connect import SshOptions, connect_all
    from launcher.weights.verify import verify as run_verify

    nodes: tuple[Node, ...] = weights.nodes
    with connect_all(nodes, SshOptions(accept_new_host_keys=accept)) as remotes, NodesProgress() as tell:
        return run_verify(nodes, remotes, weights.model_path, tell, quick=quick)


def _show_states(found: list[NodeWeights], *, as_json: bool) -> None:
    from launcher.cli.byte_bars import gib

    if as_json:
        import json
        from dataclasses import asdict

        typer.echo(json.dumps([asdict(item) for item in found], indent=2))
        return
    for item in found:
        without = f", without {', '.join(item.left_out)}" if item.left_out else ""
        size = f" {gib(item.have_bytes)} of {gib(item.total_bytes)}{without}" if item.total_bytes else ""
        typer.echo(f"{item.node}: {item.state}{size}")
        for reason in item.reasons[:5]:
            typer.echo(f"  {reason}")
        if len(item.reasons) > 5:
            typer.echo(f"  and {len(item.reasons) - 5} more")
        if item.hint:
            typer.echo(f"  -> {item.hint}")
