"""The checkpoint on the nodes: fetch it once, push it to the others, prove that it is whole."""
