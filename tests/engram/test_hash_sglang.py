"""The installed SGLang as the oracle: primes, multipliers, classes, windows and history, bit for bit."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer

from engram.hash_layout import HashLayout, make_hash_layout
from engram.hash_rows import IMAGE_BASE_ID, RowHasher
from engram.model_config import EngramConfig
from engram.token_history import TokenHistory
from engram.token_map import TokenMap, build_token_map
from tests.engram.tiny_config import RELEASED, tiny_config
from tests.engram.tiny_tokenizer import IMAGE_TOKEN_ID, make_tokenizer

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="sglang is not installed"),
    pytest.mark.filterwarnings("ignore"),  # of the packages that sglang imports
]

STAND_INS = Path(__file__).parents[2] / "sgl_ext" / "stand_ins"


@pytest.fixture(scope="module")
def wheel() -> ModuleType:
    """sglang.srt.layers.engram of a CPU install, which lacks two packages that hashing does not touch."""
    missing = [name for name in ("torchvision", "sgl_kernel") if importlib.util.find_spec(name) is None]
    if missing:
        sys.path.append(str(STAND_INS))
    from sglang.srt.layers import engram

    return engram


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


def _wrapped(tokenizer: Tokenizer) -> object:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def _oracle(wheel: ModuleType, config: EngramConfig, tokenizer: Tokenizer):
    layout = wheel.EngramLayout.from_config(config)
    hasher = wheel.EngramHasher(
        layout, _wrapped(tokenizer), config.engram_pad_token_id, config.engram_compressed_vocab_size
    )
    hasher.image_token_id = config.image_token_id
    return hasher


def _ours(config: EngramConfig, token_map: TokenMap) -> RowHasher:
    return RowHasher(
        make_hash_layout(config),
        token_map,
        pad_token_id=config.engram_pad_token_id,
        image_token_id=config.image_token_id,
    )


def _config(token_map: TokenMap, *, released_size: bool, image: bool) -> EngramConfig:
    image_token_id = IMAGE_TOKEN_ID if image else None
    if not released_size:
        return tiny_config(num_classes=token_map.num_classes, image_token_id=image_token_id)
    return RELEASED.model_copy(
        update={"engram_compressed_vocab_size": token_map.num_classes, "image_token_id": image_token_id}
    )


def _random_tokens(seed: int, count: int, vocab_size: int, *, image: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, vocab_size, count)
    if image:
        tokens[rng.random(count) < 0.15] = IMAGE_TOKEN_ID
        pads = rng.random(count) < 0.15
        tokens[pads] = IMAGE_BASE_ID + rng.integers(0, 2**40, pads.sum())
    return tokens


def test_layout_of_the_released_model(wheel: ModuleType) -> None:
    theirs, ours = wheel.EngramLayout.from_config(RELEASED), make_hash_layout(RELEASED)
    for idx, layer_id in enumerate(RELEASED.engram_layer_ids):
        assert tuple(p for order in theirs.primes[idx] for p in order) == ours.primes[idx]
        assert theirs.column_bounds(idx) == ours.column_bounds(layer_id)
    assert sum(ours.primes[0]) == 384_006_168
    assert sum(ours.primes[1]) == 384_016_682


@pytest.mark.parametrize("layer_ids", [(1, 14), (0,), (3, 2, 40)])
@pytest.mark.parametrize("num_classes", [1, 7, 2750, 99_092, 2**31 - 1])
def test_multipliers(wheel: ModuleType, layer_ids: tuple[int, ...], num_classes: int) -> None:
    theirs = wheel.compute_hash_multipliers(layer_ids, 4, num_classes)
    layout = HashLayout(
        layer_ids=layer_ids, window_tokens=4, num_heads=8, num_classes=num_classes, primes=(), head_dim=32
    )
    assert np.array_equal(layout.multipliers(), theirs.numpy())


def test_image_base_id(wheel: ModuleType) -> None:
    assert wheel.MM_PAD_SHIFT_VALUE == IMAGE_BASE_ID


@pytest.mark.parametrize(
    "added",
    [
        [],
        [
            "Caf\u1ebd",
            "cafe",
            " cafe ",
            "CAFE\u0301",
            "   ",
            "\n\t",
            "\ufb01n",
            "\u3000",
            "\u200b",
            "",
            "\u00ad",
        ],
        [
            "\u0301",
            "\u0130",
            "\u0131",
            "\u1e9e",
            "\u212b",
            "\u2126",
            "\u03a3\u03c2",
            "\ufffd",
            "a\ufffdb",
            "\ue000",
        ],
    ],
)
def test_token_classes(wheel: ModuleType, added: list[str]) -> None:
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(added)
    theirs, num_classes = wheel.build_compressed_token_map(_wrapped(tokenizer))
    ours = build_token_map(tokenizer)
    assert ours.class_ids.tolist() == theirs
    assert ours.num_classes == num_classes


@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("released_size", [False, True])
def test_extend_in_chunks_then_decode(
    wheel: ModuleType, tokenizer: Tokenizer, released_size: bool, image: bool
) -> None:
    """Three requests through the wheel's own forward: two extend batches, then six decode steps."""
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    token_map = build_token_map(tokenizer)
    config = _config(token_map, released_size=released_size, image=image)
    theirs, ours = _oracle(wheel, config, tokenizer), _ours(config, token_map)
    theirs.init_history(8, "cpu")
    kept = TokenHistory(num_slots=8, window_tokens=4, image_token_id=config.image_token_id)
    slots = [5, 1, 6]
    prompts = [_random_tokens(seed, 23, len(token_map.class_ids), image=image) for seed in range(3)]
    past = [0, 0, 0]
    batches = [[2, 9, 1], [7, 1, 12], *[[1, 1, 1]] * 6]
    for step, lengths in enumerate(batches):
        runs = [p[at : at + n] for p, at, n in zip(prompts, past, lengths, strict=True)]
        tokens = np.concatenate(runs)
        ours_ids = ours.hash_runs(tokens, lengths=lengths, start_positions=past, history=kept.rows[slots])
        positions = np.concatenate([np.arange(at, at + n) for at, n in zip(past, lengths, strict=True)])
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        batch = SimpleNamespace(
            forward_mode=ForwardMode.DECODE if step >= 2 else ForwardMode.EXTEND,
            positions=torch.from_numpy(positions),
            req_pool_indices=torch.tensor(slots),
            out_cache_loc=torch.ones(len(tokens), dtype=torch.int64),
            extend_seq_lens=torch.tensor(lengths),
            extend_seq_lens_cpu=lengths,
            extend_start_loc=torch.from_numpy(starts),
            engram_history=None,
            spec_info=None,
        )
        clamped = np.minimum(tokens, IMAGE_BASE_ID)  # the history is int32
        theirs_ids = theirs(torch.from_numpy(clamped), batch)
        assert np.array_equal(ours_ids, theirs_ids.numpy())
        for slot, run in zip(slots, runs, strict=True):
            kept.commit_run(slot, run)
        past = [at + n for at, n in zip(past, lengths, strict=True)]
        assert np.array_equal(kept.rows[slots], theirs.history[slots].numpy())


@pytest.mark.parametrize("num_accepted", [1, 2, 3, 4, 5, 6])
def test_verify_commits_accepted_tokens_only(
    wheel: ModuleType, tokenizer: Tokenizer, num_accepted: int
) -> None:
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    token_map = build_token_map(tokenizer)
    config = _config(token_map, released_size=False, image=True)
    theirs, ours = _oracle(wheel, config, tokenizer), _ours(config, token_map)
    theirs.init_history(4, "cpu")
    kept = TokenHistory(num_slots=4, window_tokens=4, image_token_id=IMAGE_TOKEN_ID)
    before = _random_tokens(3, 10, len(token_map.class_ids), image=False)
    kept.admit(2, before.tolist())
    theirs.history[2] = torch.tensor(theirs.history_row(before[-3:].tolist()))
    block = _random_tokens(4, 6, len(token_map.class_ids), image=True)
    block = np.minimum(block, IMAGE_TOKEN_ID)
    batch = SimpleNamespace(
        forward_mode=ForwardMode.TARGET_VERIFY,
        positions=torch.arange(10, 16),
        req_pool_indices=torch.tensor([2]),
        out_cache_loc=torch.ones(6, dtype=torch.int64),
        spec_info=SimpleNamespace(draft_token_num=6),
        engram_history=None,
    )
    theirs_ids = theirs(torch.from_numpy(block), batch)
    ours_ids = ours.hash_runs(block, lengths=[6], start_positions=[10], history=kept.rows[[2]])
    assert np.array_equal(ours_ids, theirs_ids.numpy())
    theirs.commit_after_verify(torch.from_numpy(block)[None], torch.tensor([2]), torch.tensor([num_accepted]))
    kept.commit_verified(2, block, num_accepted)
    assert np.array_equal(kept.rows, theirs.history[:4].numpy())


@pytest.mark.parametrize("image", [False, True])
def test_ready_windows(wheel: ModuleType, tokenizer: Tokenizer, image: bool) -> None:
    import torch

    token_map = build_token_map(tokenizer)
    config = _config(token_map, released_size=True, image=image)
    rng = np.random.default_rng(8)
    windows = _random_tokens(9, 4000, len(token_map.class_ids), image=image).reshape(-1, 4)
    blocked = rng.random(windows.shape) < 0.2
    theirs, _ = _oracle(wheel, config, tokenizer).hash_windows(
        torch.from_numpy(windows), torch.from_numpy(blocked)
    )
    assert np.array_equal(_ours(config, token_map).hash_windows(windows, blocked), theirs.numpy())


def test_graph_padding(wheel: ModuleType, tokenizer: Tokenizer) -> None:
    import torch
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    token_map = build_token_map(tokenizer)
    config = _config(token_map, released_size=False, image=True)
    theirs = _oracle(wheel, config, tokenizer)
    theirs.init_history(4, "cpu")
    tokens = np.array([11, 12, 13, 0, 0])
    batch = SimpleNamespace(
        forward_mode=ForwardMode.EXTEND,
        positions=torch.tensor([0, 1, 2, 0, 0]),
        req_pool_indices=torch.tensor([0]),
        out_cache_loc=torch.tensor([1, 1, 1, 0, 0]),
        extend_seq_lens=torch.tensor([3]),
        extend_seq_lens_cpu=[3],
        extend_start_loc=torch.tensor([0]),
        engram_history=None,
    )
    theirs_ids = theirs(torch.from_numpy(tokens), batch)
    ours_ids = _ours(config, token_map).hash_runs(
        tokens, lengths=[3], start_positions=[0], history=np.zeros((1, 3), dtype=np.int64)
    )
    assert np.array_equal(ours_ids, theirs_ids.numpy())
