"""Attention's first output projection in FP8, as the checkpoint has it; checked at boot, all ranks choose."""
