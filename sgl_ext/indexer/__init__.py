"""The lightning indexer's decode step at a cost that follows the live tokens, not the context's capacity."""
