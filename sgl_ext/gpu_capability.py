"""Whether this GPU and these packages can serve DeepSeek-V4.1 at all: asked before anything is built."""

from __future__ import annotations

import re
from collections.abc import Callable

from sgl_ext.errors import CapabilityError

SERVED_MAJORS = (9, 10, 12)
# What SGLang 0.5.23 pins, and on sm_12x what reads the KV cache: older FlashInfer knows other page sizes and
# head counts (docs/sm12x.md, B2 and B23).
_NEEDED_ON_SM12X = {"flashinfer-python": "0.7.2", "sglang-kernel": "0.4.10", "triton": "3.0.0"}
_PREFILL_HEADS = (8, 16, 32, 64, 128)  # FlashInfer 0.7.2, FP8 sparse MLA on sm_12x


def check_capability(capability: tuple[int, int], find_version: Callable[[str], str | None]) -> None:
    """Raises CapabilityError by name. find_version gives an installed distribution's version, or None."""
    major, minor = capability
    if major not in SERVED_MAJORS:
        raise CapabilityError(
            f"The GPU must be sm_90, sm_10x or sm_12x for DeepSeek-V4.1, got sm_{major}{minor}.",
            hint="SGLang 0.5.23 has no V4.1 kernels for it; engine.runtime: cpu serves a tiny one anywhere",
        )
    if major != 12:
        return
    for name, lowest in _NEEDED_ON_SM12X.items():
        found = find_version(name)
        if found is None or _numbers(found) < _numbers(lowest):
            raise CapabilityError(
                f"{name} must be {lowest} or newer on sm_{major}{minor}, got {found or 'none'}.",
                hint="sparkctl install puts the versions of the lock file on every node",
            )


def kernel_heads(local_heads: int) -> int:
    """Query heads that FlashInfer's sm_12x kernels take in prefill and in decode: 24 of TP 3 become 32."""
    for heads in _PREFILL_HEADS:
        if local_heads <= heads:
            return heads
    raise CapabilityError(
        f"A rank must have at most {_PREFILL_HEADS[-1]} query heads on sm_12x, got {local_heads}.",
        hint="raise parallelism.tp",
    )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
