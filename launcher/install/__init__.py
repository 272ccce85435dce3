"""The engine on every node: the same wheels, from a lock with hashes, installed offline."""
