"""Ask the nodes of a topology that is being written for their own ports. Read-only."""

from __future__ import annotations

from dataclasses import replace

from launcher.connect import SshOptions, connect_all
from launcher.draft_topology import NodeDraft, TopologyDraft, fill_from_facts
from launcher.gather_facts import NodeProbe, gather_facts
from launcher.launch_cluster import require_facts
from launcher.topology import Fabric, Node, Ssh


def probe_draft(draft: TopologyDraft, options: SshOptions) -> TopologyDraft:
    """The draft with address, interface and HCAs of each node. Raises when a node cannot be asked."""
    probes = tuple(
        NodeProbe(node=_node(draft, item), model_path=None, runtime="venv", ports=()) for item in draft.nodes
    )
    with connect_all([probe.node for probe in probes], options) as remotes:
        facts = require_facts(gather_facts(remotes, probes))
    filled = tuple(fill_from_facts(item, facts[item.name], layout=draft.layout) for item in draft.nodes)
    return replace(draft, nodes=filled)


def _node(draft: TopologyDraft, item: NodeDraft) -> Node:
    """Enough of a node to reach it; its fabric is what is being asked for, and is not used on the way."""
    ssh = Ssh(host=item.host, port=item.port, user=item.user or draft.user, identity_file=draft.identity_file)
    return Node(name=item.name, ssh=ssh, fabric=Fabric(address="192.0.2.1", interface="unknown"))
