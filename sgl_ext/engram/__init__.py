"""Engram rows from packed files inside the engine: what replaces SGLang's tables in memory."""
