"""Settings of a row store, with their defaults and reasons."""

from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_QUEUE_DEPTH: Final = 1024


class StoreOptions(BaseModel):
    """All sizes are upper bounds; see docs/engram.md for how to choose them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backend: Literal["io_uring", "threads", "ram"] = "io_uring"
    cache_bytes: Annotated[int, Field(ge=0)] = 0
    """Rows kept after use, with the cache's own tables."""
    lookahead_budget_bytes: Annotated[int, Field(ge=0)] = 0
    """Rows read ahead and not yet asked for; while unused, it serves as cache."""
    queue_depth: Annotated[int, Field(ge=1, le=MAX_QUEUE_DEPTH)] = 256
    """Reads in flight. Drives reach their rate from 64 on; at 256 a read costs the least processor time."""
    lookahead_depth: Annotated[int, Field(ge=1, le=MAX_QUEUE_DEPTH)] = 32
    """Look-ahead reads in flight: what a decode read can find ahead of it in the drive."""
    max_pages_per_read: Annotated[int, Field(ge=1, le=32)] = 4
    """Pages joined into one read; random rows seldom have more neighbours than that."""
    max_gap_pages: Annotated[int, Field(ge=0, le=31)] = 2
    """Unwanted pages read through to join two wanted ones:
    cheaper than a second read for drive and kernel.
    """
    num_threads: Annotated[int, Field(ge=1, le=256)] = 32
    """Of the thread-pool backend."""
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    """Of one read, from its start: drives answer within milliseconds, or within seconds after an error."""
    allow_buffered: bool = False
    """Reads through the page cache where the file system cannot bypass it."""

    @model_validator(mode="after")
    def _ram_needs_no_cache(self) -> Self:
        if self.backend == "ram" and self.cache_bytes + self.lookahead_budget_bytes > 0:
            raise ValueError(
                "cache_bytes and lookahead_budget_bytes must be 0 with backend ram, which holds all rows"
            )
        return self
