"""Checks of `sparkctl doctor`: pure functions over the facts of all nodes
and the plan that is to run on them."""
