"""`sparkctl engram bench`: how close the row store comes to the limits of this machine's disk."""
