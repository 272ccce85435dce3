"""Sharing recipes: registries are git repositories with an index; what comes from one is data."""
