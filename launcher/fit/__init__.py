"""`sparkctl fit`: bytes per rank from a checkpoint's shape and a recipe, and what they forbid."""
