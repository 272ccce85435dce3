"""Test hosts: network namespaces, each with a real OpenSSH server. See netns_hosts.NetnsHosts."""

from tests.hosts.netns_hosts import NETNS_MARKS, NetnsHosts
from tests.hosts.netns_node import HostSpec, NetnsNode
from tests.hosts.node_processes import NodeProcess

__all__ = ["NETNS_MARKS", "HostSpec", "NetnsHosts", "NetnsNode", "NodeProcess"]
