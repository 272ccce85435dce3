"""The Python of the engine on a node, and its image, as the plan starts them."""

from __future__ import annotations

from launcher.plan import NodePlan


def python_of(node: NodePlan) -> tuple[str, ...]:
    """The engine's command line up to its Python: what stands before `-m sglang.launch_server`."""
    return node.argv[: node.argv.index("sglang.launch_server") - 1]


def image_of(node: NodePlan) -> str | None:
    """Of a container: in its command the image stands before its Python."""
    return python_of(node)[-2] if node.container else None
