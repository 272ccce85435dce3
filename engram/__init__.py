"""Engram row store: hashing, packing and reading of n-gram tables on NVMe."""
