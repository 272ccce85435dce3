"""The policies that the benchmark compares: plain LRU is plain LRU, and only ours survives a sweep."""

from collections import OrderedDict

import numpy as np
import pytest
from engram._core import CachePolicy

ROW_BYTES = 264
LRU_OVERHEAD_BYTES = 20


def make_policy(name: str, cache_bytes: int) -> CachePolicy:
    return CachePolicy(name=name, weight_bytes=256, scale_bytes=8, cache_bytes=cache_bytes)


def test_lru_equals_an_ordered_dict() -> None:
    room = 500
    policy = make_policy("lru", room * (ROW_BYTES + LRU_OVERHEAD_BYTES))
    oracle: OrderedDict[int, None] = OrderedDict()
    rng = np.random.default_rng(0)
    for _ in range(400):
        ids = rng.zipf(1.2, rng.integers(0, 100)).clip(max=5_000).astype(np.int64)
        missed = []
        for row in ids.tolist():
            if row in oracle:
                oracle.move_to_end(row)
            else:
                missed.append(row)
        for row in sorted(set(missed)):
            oracle[row] = None
            if len(oracle) > room:
                oracle.popitem(last=False)
        assert policy.step(ids) == (len(ids) - len(missed), len(set(missed)))


@pytest.mark.parametrize(("name", "survives"), [("s3fifo", True), ("lru", False), ("set16", False)])
def test_rows_in_use_after_a_sweep(name: str, survives: bool) -> None:
    policy = make_policy(name, 2_000 * 300)
    hot = np.arange(800, dtype=np.int64)
    for _ in range(5):
        policy.step(hot)
    assert policy.step(hot)[0] > 700
    for start in range(1_000, 21_000, 1_000):
        policy.step(np.arange(start, start + 1_000, dtype=np.int64))
    hits, _ = policy.step(hot)
    assert hits > 700 if survives else hits < 100


@pytest.mark.parametrize("name", ["s3fifo", "lru", "set16"])
def test_no_room_is_no_cache(name: str) -> None:
    policy = make_policy(name, 0)
    ids = np.array([3, 3, 4], dtype=np.int64)
    assert [policy.step(ids) for _ in range(2)] == [(0, 2), (0, 2)]


def test_unknown_policies_are_refused() -> None:
    with pytest.raises(ValueError, match="s3fifo, lru, set16, got fifo"):
        make_policy("fifo", 1_000)
