"""Every rank's verdicts on every rank, over the engine's CPU group."""

from __future__ import annotations

from typing import Any

from sgl_ext.experts.choose import Vote


def gather_votes(vote: Vote, group: Any) -> tuple[Vote, ...]:
    """In order of rank. group is a torch.distributed process group on CPU, None for a single rank. Blocks."""
    if group is None:
        return (vote,)
    import torch.distributed as dist

    votes: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(votes, vote, group=group)
    return tuple(sorted(votes, key=lambda item: item.rank))
