"""Recipes to and from sparkrun's format, version 2, with a report of what could not be carried."""
