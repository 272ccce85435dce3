"""Primes, sums, starts and multipliers against the figures of the released model."""

import numpy as np
import pytest

from engram.errors import CheckpointError
from engram.hash_layout import make_hash_layout
from engram.model_config import read_engram_config
from engram.primes import draw_column_primes, is_prime
from tests.engram.tiny_config import RELEASED, tiny_config

RELEASED_LAYOUT = make_hash_layout(RELEASED)


def test_row_counts_of_the_released_tables() -> None:
    assert RELEASED_LAYOUT.num_rows(1) == 384_006_168
    assert RELEASED_LAYOUT.num_rows(14) == 384_016_682


def test_first_and_last_primes_of_the_released_tables() -> None:
    first, second = RELEASED_LAYOUT.primes
    assert (first[0], first[-1]) == (16_000_057, 16_000_463)
    assert (second[0], second[-1]) == (16_000_477, 16_000_889)
    assert len(set(first + second)) == 48


def test_multipliers_of_the_released_tables() -> None:
    assert RELEASED_LAYOUT.multipliers().tolist() == [
        [76632096046245, 4839876093313, 35959672319349, 73987337458391],
        [67716810739261, 51510806800915, 30921347202721, 82619226485591],
    ]


def test_largest_product_stays_below_2_to_the_63() -> None:
    assert int(RELEASED_LAYOUT.multipliers().max()) * 99_091 < 1 << 63


def test_columns_follow_each_other_without_a_gap() -> None:
    bounds = RELEASED_LAYOUT.column_bounds(14)
    assert bounds[0] == 0
    assert np.diff(bounds).tolist() == list(RELEASED_LAYOUT.primes[1])


def test_tiny_sums() -> None:
    layout = make_hash_layout(tiny_config(num_classes=300))
    assert (layout.num_rows(1), layout.num_rows(2)) == (3828, 7078)


def test_is_prime_against_a_sieve() -> None:
    limit = 20_000
    sieve = np.ones(limit, dtype=bool)
    sieve[:2] = False
    for factor in range(2, 142):
        sieve[factor * factor :: factor] = False
    assert [is_prime(number) for number in range(limit)] == sieve.tolist()


@pytest.mark.parametrize(
    "composite", [3_215_031_751, 3_825_123_056_546_413_051, 1_000_000_007 * 1_000_000_009]
)
def test_strong_pseudoprimes_are_composite(composite: int) -> None:
    assert not is_prime(composite)


def test_primes_are_shared_by_all_layers_in_order() -> None:
    layers = draw_column_primes(num_layers=3, num_orders=2, num_heads=2, vocab_size=10)
    assert layers == ((11, 13, 17, 19), (23, 29, 31, 37), (41, 43, 47, 53))


def test_wrong_row_count_is_refused() -> None:
    wrong = RELEASED.model_copy(update={"engram_num_embeddings": (384_006_168, 384_016_681)})
    with pytest.raises(CheckpointError, match=r"layer 14 must be 384016682.*got 384016681"):
        make_hash_layout(wrong)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "must be JSON"),
        ("[]", "must be an object, got list"),
        ("{}", "engram_layer_ids must be right"),
        ('{"engram_layer_ids": "x"}', "engram_layer_ids must be right"),
    ],
)
def test_unusable_config_is_refused(tmp_path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_engram_config(tmp_path)


def test_config_nested_and_flat_read_the_same(tmp_path) -> None:
    nested, flat = tmp_path / "nested", tmp_path / "flat"
    keys = RELEASED.model_dump_json(exclude={"image_token_id"})
    for folder, text in ((nested, f'{{"image_token_id": 129264, "text_config": {keys}}}'), (flat, keys)):
        folder.mkdir()
        (folder / "config.json").write_text(text)
    assert read_engram_config(nested) == RELEASED
    assert read_engram_config(flat) == RELEASED.model_copy(update={"image_token_id": None})
