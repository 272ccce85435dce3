"""Sampling is unchanged by a cap: SGLang's own accept, with and without one, against the target's law.

A vocabulary of 5, a block of 3, tens of thousands of requests at once, temperature 1. Counted is the joint
distribution of a block's first tokens, so that a cap that favours some continuations would show.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.filterwarnings("ignore"),  # imports of SGLang and torch warn of themselves
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]

VOCAB, BLOCK, ROWS = 5, 3, 30_000
# Chance of a chi-square above this for a right sampler: 1e-4 (Wilson-Hilferty).
_Z = 3.72


@pytest.fixture(scope="module", autouse=True)
def cpu_engine() -> Iterator[None]:
    from sgl_ext.stand_ins import add_stand_ins

    add_stand_ins()
    with patch.dict(os.environ, {"SGLANG_USE_CPU_ENGINE": "1"}):
        yield


def laws(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Next-token distributions by prefix of up to BLOCK tokens:
    the target's, and a draft that is often right."""
    generator = torch.Generator().manual_seed(seed)
    size = sum(VOCAB**length for length in range(BLOCK + 1))
    target = torch.softmax(1.5 * torch.randn(size, VOCAB, generator=generator), dim=-1)
    draft = torch.softmax(target.log() + 0.7 * torch.randn(size, VOCAB, generator=generator), dim=-1)
    return target, draft


def node_of(prefix: torch.Tensor) -> torch.Tensor:
    """Place of each row's prefix [B, n] in the laws."""
    length = prefix.shape[1]
    place = torch.zeros(prefix.shape[0], dtype=torch.long)
    for column in range(length):
        place = place * VOCAB + prefix[:, column]
    return place + sum(VOCAB**shorter for shorter in range(length))


def accept(widths: torch.Tensor | None, *, greedy_draft: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Accepted counts and the tokens of each row [B, BLOCK + 1], by SGLang's accept_draft_tokens."""
    from sglang.srt.speculative.dspark_components import dspark_verify

    from sgl_ext.hooks.chain_sampling import sample_chain
    from sgl_ext.hooks.spec_accept import Cutoff

    target, draft = laws(seed=3)
    drafted = torch.zeros((ROWS, 0), dtype=torch.long)
    draft_logits = []
    for _ in range(BLOCK):
        law = draft[node_of(drafted)]
        token = law.argmax(dim=1) if greedy_draft else torch.multinomial(law, 1).squeeze(1)
        draft_logits.append(law.log())
        drafted = torch.cat([drafted, token.unsqueeze(1)], dim=1)
    target_logits = torch.stack(
        [target[node_of(drafted[:, :length])].log() for length in range(BLOCK + 1)], dim=1
    )
    if widths is not None:  # a compact verify computes no row beyond the width, and SGLang fills in zeros
        beyond = torch.arange(BLOCK + 1) > widths.unsqueeze(1)
        target_logits = target_logits.masked_fill(beyond.unsqueeze(-1), 0.0)
    sampling = SimpleNamespace(
        is_all_greedy=False,
        is_any_greedy=False,
        need_top_k_sampling=False,
        need_top_p_sampling=False,
        temperatures=torch.ones(ROWS, 1),
    )
    block = SimpleNamespace(
        greedy_mask=torch.zeros(ROWS, dtype=torch.bool),
        greedy_draft=greedy_draft,
        draft_tokens=drafted,
        corrected_logits=torch.stack(draft_logits, dim=1),
        temperatures=torch.ones(ROWS),
    )
    with patch(
        "sglang.kernels.ops.speculative.dspark.dspark_accept.chain_speculative_sampling_triton", sample_chain
    ):
        length, bonus, _ = dspark_verify.accept_draft_tokens(
            candidates=torch.cat([torch.zeros((ROWS, 1), dtype=torch.long), drafted], dim=1),
            target_logits=target_logits.reshape(ROWS * (BLOCK + 1), VOCAB),
            draft_block=block,
            sampling_info=sampling,
            draft_input=None,
            gamma=BLOCK,
            verify_num_draft_tokens=BLOCK + 1,
            cutoff_layout=None if widths is None else Cutoff(verify_lens=widths + 1),
        )
    tokens = torch.cat([drafted, torch.zeros((ROWS, 1), dtype=torch.long)], dim=1)
    tokens[torch.arange(ROWS), length.long()] = bonus
    return length.long(), tokens


def continue_from_target(length: torch.Tensor, tokens: torch.Tensor, total: int) -> torch.Tensor:
    """The first `total` tokens of each row; those behind the accepted ones come from the target, as the next
    steps would draw them."""
    target, _ = laws(seed=3)
    for place in range(1, total):
        drawn = torch.multinomial(target[node_of(tokens[:, :place])], 1).squeeze(1)
        tokens[:, place] = torch.where(place > length, drawn, tokens[:, place])
    return tokens[:, :total]


@functools.cache
def expected_counts(total: int) -> torch.Tensor:
    """By sequence of `total` tokens, in the order of node_of."""
    target, _ = laws(seed=3)
    sequences = torch.cartesian_prod(*[torch.arange(VOCAB)] * total)
    chance = torch.ones(len(sequences), dtype=torch.double)
    for place in range(total):
        law = target[node_of(sequences[:, :place])].double()
        chance *= law.gather(1, sequences[:, place : place + 1]).squeeze(1)
    return chance * ROWS


def chi_square_is_plausible(seen: torch.Tensor, total: int) -> bool:
    places = node_of(seen) - sum(VOCAB**shorter for shorter in range(total))
    expected = expected_counts(total)
    counts = torch.bincount(places, minlength=len(expected))
    freedom = len(expected) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / (2 / (9 * freedom)) ** 0.5
    return bool(z < _Z)


def mixed_widths() -> torch.Tensor:
    return torch.arange(ROWS, dtype=torch.int32) % (BLOCK + 1)


@pytest.mark.parametrize(
    ("widths", "greedy_draft"),
    [
        (None, False),
        (torch.zeros(ROWS, dtype=torch.int32), False),
        (mixed_widths(), False),
        (mixed_widths(), True),
    ],
    ids=["no cap", "width 0", "mixed widths", "mixed widths, one-hot draft"],
)
def test_the_tokens_follow_the_target_at_every_cap(widths: torch.Tensor | None, greedy_draft: bool) -> None:
    torch.manual_seed(11)
    length, tokens = accept(widths, greedy_draft=greedy_draft)
    if widths is not None:
        assert bool((length <= widths).all())
    assert int(length.max()) == (BLOCK if widths is None else int(widths.max()))
    assert chi_square_is_plausible(continue_from_target(length, tokens, 3), 3)


def test_a_rule_that_looks_at_the_drawn_token_is_found_out() -> None:
    """The test's own power: a second token of 0 is thrown away after the accept and drawn again."""
    torch.manual_seed(11)
    length, tokens = accept(None)
    peeked = torch.where(tokens[:, 1] == 0, length.clamp_max(0), length)
    assert bool((peeked < length).any())
    assert not chi_square_is_plausible(continue_from_target(peeked, tokens, 3), 3)


def test_the_cpu_form_is_sglangs_kernel() -> None:
    """Triton's interpreter runs the kernel itself on the same coins."""
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE],
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "SGLANG_USE_CPU_ENGINE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "same 64" in done.stdout


_COMPARE = """
from sgl_ext.stand_ins import add_stand_ins
add_stand_ins()
import torch
from sglang.kernels.ops.speculative.reject_sampling import chain_speculative_sampling_triton as kernel
from sgl_ext.hooks.chain_sampling import sample_chain
torch.manual_seed(5)
B, N, V = 64, 3, 7
target = torch.softmax(torch.randn(B, N + 1, V), -1)
draft = torch.softmax(torch.randn(B, N, V), -1)
drawn = torch.multinomial(draft.view(-1, V), 1).view(B, N)
candidates = torch.cat([torch.zeros(B, 1, dtype=torch.long), drawn], 1)
index = torch.arange(B * (N + 1)).view(B, N + 1)
coins, final = torch.rand(B, N), torch.rand(B)
outs = []
for run in (kernel, sample_chain):
    predicts = torch.full((B * (N + 1),), -1, dtype=torch.int32)
    accepted = torch.full((B, N + 1), -1, dtype=torch.int32)
    num = torch.zeros(B, dtype=torch.int32)
    run(predicts, accepted, num, candidates, index, index, index, coins, final, target, draft, 1.0, 1.0, True)
    outs.append((predicts, accepted, num))
for one, two in zip(*outs):
    assert torch.equal(one, two)
assert 0 < outs[0][2].float().mean() < N
print("same", B)
"""
