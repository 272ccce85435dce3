"""Other people's protocols, so that a figure can stand beside theirs.
Each has its own label in every record.
"""
