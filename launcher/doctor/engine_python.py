"""The Python of the engine on a node, as the plan starts it."""

from __future__ import annotations

from launcher.plan import NodePlan


def python_of(node: NodePlan) -> tuple[str, ...]:
    """The engine's command line up to its Python: what stands before `-m sglang.launch_server`."""
    return node.argv[: node.argv.index("sglang.launch_server") - 1]
