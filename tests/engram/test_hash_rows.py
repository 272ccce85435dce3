"""Row ids of the native hasher against the slow reference."""

import threading
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engram import _core
from engram.errors import TableMismatchError, TokenIdError
from engram.hash_layout import make_hash_layout
from engram.hash_rows import IMAGE_BASE_ID, RowHasher
from engram.token_map import TokenMap
from tests.engram.hash_reference import reference_rows
from tests.engram.tiny_config import RELEASED, tiny_layout

VOCAB, PAD, IMAGE = 400, 2, 9
TOKEN_MAP = TokenMap(class_ids=(np.arange(VOCAB, dtype=np.int32) * 7 % 300).astype(np.int32), num_classes=300)
LAYOUT = tiny_layout(300)
HASHERS = {
    image: RowHasher(LAYOUT, TOKEN_MAP, pad_token_id=PAD, image_token_id=image) for image in (None, IMAGE)
}
TOKENS = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=40)
WITH_IMAGES = st.lists(
    st.one_of(st.integers(0, VOCAB - 1), st.just(IMAGE), st.integers(IMAGE_BASE_ID, 2**62)),
    min_size=1,
    max_size=40,
)


def _reference(tokens: list[int], image: int | None = None) -> np.ndarray:
    return reference_rows(LAYOUT, TOKEN_MAP, tokens, pad_token_id=PAD, image_token_id=image)


@given(TOKENS)
def test_whole_prompt(tokens: list[int]) -> None:
    assert np.array_equal(HASHERS[None].hash_prompt(tokens), _reference(tokens))


@given(WITH_IMAGES)
def test_images_hide_what_came_before(tokens: list[int]) -> None:
    assert np.array_equal(HASHERS[IMAGE].hash_prompt(tokens), _reference(tokens, IMAGE))


@given(WITH_IMAGES, st.data())
def test_chunk_borders_change_nothing(tokens: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(tokens)), max_size=5)) | {0, len(tokens)})
    hasher = HASHERS[IMAGE]
    chunks = [
        hasher.hash_prompt(tokens[start:end], start_position=start, history=tokens[max(0, start - 3) : start])
        for start, end in pairwise(cuts)
    ]
    assert np.array_equal(np.concatenate(chunks), _reference(tokens, IMAGE))


@given(st.lists(WITH_IMAGES, min_size=1, max_size=5), st.data())
def test_batch_of_runs_with_padding(prompts: list[list[int]], data: st.DataObject) -> None:
    starts = [data.draw(st.integers(0, len(prompt))) for prompt in prompts]
    num_padding = data.draw(st.integers(0, 4))
    history = np.full((len(prompts), 3), 10**6 + 5, dtype=np.int64)
    for row, (prompt, start) in enumerate(zip(prompts, starts, strict=True)):
        before = prompt[max(0, start - 3) : start]
        history[row, 3 - len(before) :] = before
    batch = [token for prompt, start in zip(prompts, starts, strict=True) for token in prompt[start:]]
    rows = HASHERS[IMAGE].hash_runs(
        batch + [0] * num_padding,
        lengths=[len(prompt) - start for prompt, start in zip(prompts, starts, strict=True)],
        start_positions=starts,
        history=history,
    )
    wanted = [_reference(prompt, IMAGE)[start:] for prompt, start in zip(prompts, starts, strict=True)]
    # An image alone in its window hashes as an empty one, which is what padding must read as.
    empty = _reference([IMAGE], IMAGE)
    assert np.array_equal(rows, np.concatenate([*wanted, *[empty] * num_padding]))


@given(WITH_IMAGES)
def test_ready_windows(tokens: list[int]) -> None:
    windows = np.zeros((len(tokens), 4), dtype=np.int64)
    blocked = np.ones((len(tokens), 4), dtype=bool)
    for position in range(len(tokens)):
        for lookback in range(min(position, 3) + 1):
            windows[position, lookback] = tokens[position - lookback]
            blocked[position, lookback] = False
    assert np.array_equal(HASHERS[IMAGE].hash_windows(windows, blocked), _reference(tokens, IMAGE))


@given(TOKENS, st.integers(1, 4), st.data())
def test_one_rank_hashes_only_its_columns(tokens: list[int], tp: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, tp - 1))
    wanted = _reference(tokens)[:, :, rank::tp]
    table = RowHasher(LAYOUT, TOKEN_MAP, pad_token_id=PAD, rank=rank, tp=tp)
    assert np.array_equal(table.hash_prompt(tokens), wanted)


@pytest.mark.parametrize(("rank", "tp"), [(29, 30), (0, LAYOUT.num_columns + 1), (2, 2), (-1, 2), (0, 0)])
def test_a_rank_without_columns_is_refused(rank: int, tp: int) -> None:
    with pytest.raises(TableMismatchError, match=rf"got rank {rank} of {tp}"):
        RowHasher(LAYOUT, TOKEN_MAP, pad_token_id=PAD, rank=rank, tp=tp)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 129_279), min_size=1, max_size=12))
def test_released_layout(tokens: list[int]) -> None:
    layout = make_hash_layout(RELEASED)
    class_ids = (np.arange(129_280, dtype=np.int64) * 76_543 % 99_092).astype(np.int32)
    token_map = TokenMap(class_ids=class_ids, num_classes=99_092)
    hasher = RowHasher(layout, token_map, pad_token_id=2, image_token_id=129_264)
    wanted = reference_rows(layout, token_map, tokens, pad_token_id=2, image_token_id=129_264)
    assert np.array_equal(hasher.hash_prompt(tokens), wanted)


@given(
    st.integers(0, 2**31 - 2),
    st.integers(0, (2**63 - 1) // (2**31 - 1)),
    st.integers(2, 2**61).map(lambda n: n | 1),
)
def test_reduction_is_exact_up_to_2_to_the_63(token_class: int, multiplier: int, prime: int) -> None:
    native = _core.RowHasher(
        class_ids=np.array([token_class, 0], dtype=np.int32),
        multipliers=np.array([[multiplier, 0]], dtype=np.int64),
        orders=np.array([1, 1], dtype=np.int32),
        primes=np.array([[prime, 2]], dtype=np.int64),
        offsets=np.zeros((1, 2), dtype=np.int64),
        pad_class=0,
        image_token_id=-1,
        image_base_id=0,
    )
    out = np.empty((1, 1, 2), dtype=np.int64)
    zeros = np.zeros((1, 1), dtype=np.int64)
    tokens, ones, starts = zeros[0], np.ones(1, dtype=np.int64), zeros[0]
    assert native.hash_runs(tokens, ones, starts, zeros, out) == -1
    assert out[0, 0].tolist() == [token_class * multiplier % prime, token_class * multiplier % 2]


@pytest.mark.parametrize("bad", [-1, VOCAB, IMAGE_BASE_ID, 2**62])
def test_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    with pytest.raises(TokenIdError, match=rf"must be 0 to {VOCAB - 1} .*token 2"):
        HASHERS[None].hash_prompt([5, 6, bad])
    with pytest.raises(TokenIdError, match="token 0"):
        HASHERS[None].hash_prompt([5], start_position=1, history=[bad])


def test_history_must_reach_the_window() -> None:
    with pytest.raises(ValueError, match="must hold the 3 tokens"):
        HASHERS[None].hash_prompt([5], start_position=7, history=[1, 2])


def test_floats_are_refused() -> None:
    with pytest.raises(TypeError, match="must be integers"):
        HASHERS[None].hash_prompt(np.array([1.5]))


@pytest.mark.parametrize("lengths", [[-1], [3], [2**62, 2**62]])
def test_lengths_must_fit_the_tokens(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="lengths must not"):
        HASHERS[None].hash_runs(
            [1, 2],
            lengths=lengths,
            start_positions=[0] * len(lengths),
            history=np.zeros((len(lengths), 3), dtype=np.int64),
        )


def test_output_is_written_in_place_and_its_shape_checked() -> None:
    out = np.empty((3, 2, 24), dtype=np.int64)
    assert HASHERS[None].hash_prompt([1, 2, 3], out=out) is out
    assert np.array_equal(out, _reference([1, 2, 3]))
    with pytest.raises(ValueError, match="out must be"):
        HASHERS[None].hash_prompt([1, 2], out=out)


def test_other_threads_run_while_a_prompt_is_hashed() -> None:
    """The hasher holds the GIL for none of a call that takes tens of milliseconds."""
    hasher = RowHasher(make_hash_layout(RELEASED), TOKEN_MAP, pad_token_id=PAD)
    tokens = np.full(400_000, 5, dtype=np.int64)
    out = np.empty((len(tokens), 2, 24), dtype=np.int64)
    entered, done, ticks = threading.Event(), threading.Event(), 0

    def work() -> None:
        entered.set()
        hasher.hash_prompt(tokens, out=out)
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    entered.wait()
    while not done.is_set():
        ticks += 1
        done.wait(0.0005)
    worker.join()
    # One switch into the call and one out of it would give two turns without the release.
    assert ticks > 5
