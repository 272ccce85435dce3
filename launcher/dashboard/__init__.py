"""A page on this machine that shows what the clusters do: collected on the nodes, served read-only."""
