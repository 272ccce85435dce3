"""Adaptive DSpark: how many draft tokens a step verifies. Pure: neither torch nor SGLang, integers only."""
