"""The kept tokens of running requests: what a step commits is what the next step hashes with."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engram.hash_rows import IMAGE_BASE_ID, RowHasher
from engram.token_history import TokenHistory
from engram.token_map import TokenMap
from tests.engram.hash_reference import reference_rows
from tests.engram.tiny_config import tiny_layout

VOCAB, IMAGE = 200, 9
TOKEN_MAP = TokenMap(class_ids=np.arange(VOCAB, dtype=np.int32), num_classes=VOCAB)
LAYOUT = tiny_layout(VOCAB)
HASHER = RowHasher(LAYOUT, TOKEN_MAP, pad_token_id=2, image_token_id=IMAGE)
IDS = st.one_of(st.integers(0, VOCAB - 1), st.just(IMAGE), st.integers(IMAGE_BASE_ID, 2**40))


def _hash(history: TokenHistory, tokens: list[int], start: int) -> np.ndarray:
    return HASHER.hash_runs(tokens, lengths=[len(tokens)], start_positions=[start], history=history.rows[:1])


@given(st.lists(st.lists(IDS, min_size=1, max_size=6), min_size=1, max_size=6))
def test_steps_of_any_size_hash_as_the_whole_sequence(steps: list[list[int]]) -> None:
    history = TokenHistory(num_slots=1, window_tokens=4, image_token_id=IMAGE)
    rows, sequence = [], []
    for step in steps:
        rows.append(_hash(history, step, len(sequence)))
        history.commit_run(0, np.array(step))
        sequence += step
    wanted = reference_rows(LAYOUT, TOKEN_MAP, sequence, pad_token_id=2, image_token_id=IMAGE)
    assert np.array_equal(np.concatenate(rows), wanted)


@given(
    st.lists(st.integers(0, VOCAB - 1), max_size=6),
    st.lists(st.integers(0, VOCAB - 1), min_size=6, max_size=6),
)
def test_rejected_drafts_leave_no_trace(before: list[int], block: list[int]) -> None:
    for num_accepted in range(1, 7):
        history = TokenHistory(num_slots=1, window_tokens=4)
        history.admit(0, before)
        history.commit_verified(0, np.array(block), num_accepted)
        accepted = before + block[:num_accepted]
        rows = _hash(history, [7], len(accepted))
        wanted = reference_rows(LAYOUT, TOKEN_MAP, [*accepted, 7], pad_token_id=2, image_token_id=IMAGE)
        assert np.array_equal(rows, wanted[-1:])


@given(st.lists(IDS, min_size=1, max_size=12), st.data())
def test_resume_behind_a_cached_prefix_or_a_retraction(tokens: list[int], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    history = TokenHistory(num_slots=3, window_tokens=4, image_token_id=IMAGE)
    history.rows[0] = 77  # what the slot's former request left
    history.admit(0, tokens[:start])
    wanted = reference_rows(LAYOUT, TOKEN_MAP, tokens, pad_token_id=2, image_token_id=IMAGE)
    assert np.array_equal(_hash(history, tokens[start:], start), wanted[start:])
    assert not history.rows[1:].any()


def test_more_accepted_than_verified_is_refused() -> None:
    with pytest.raises(ValueError, match="0 to 2, got 3"):
        TokenHistory(num_slots=1, window_tokens=4).commit_verified(0, np.array([1, 2]), 3)
