"""DraftBlockProposer.propose: a step that drafts nothing skips the draft model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from sgl_ext.hook import Hook, HookKind
from sgl_ext.speculation.engine_speculation import current_step


def draft_if_planned(original: Callable[..., Any], proposer: Any, **kwargs: Any) -> Any:
    step = current_step()
    if step is None:
        return original(proposer, **kwargs)
    step.window = kwargs["verify_window"]
    if not step.drafts:
        return propose_nothing(proposer, **kwargs)
    proposal = original(proposer, **kwargs)
    step.clock.mark()
    return proposal


@dataclass(frozen=True, slots=True, kw_only=True)
class _Nothing:
    """A proposal for one batch size. SGLang puts other tensors for temperatures and top_ks where the batch
    changes and writes into none of them (DraftBlockProposer._stage_sampling_params relies on it too)."""

    temperatures: Any
    top_ks: Any
    proposal: Any


def propose_nothing(proposer: Any, *, draft_input: Any, bs: int, sampling_info: Any, **kwargs: Any) -> Any:
    """A block that is never tested: the verify stops at the token before it, all that a step writes.

    The tensors are those of the last step of this batch size, whose kernels come before on the same stream:
    a plain step has no draft to launch its next kernels behind.
    """
    kept: dict[int, _Nothing] = proposer.__dict__.setdefault("sparkctl_nothing", {})
    found = kept.get(bs)
    temperatures = None if sampling_info is None else sampling_info.temperatures
    top_ks = None if sampling_info is None else sampling_info.top_ks
    if found is None or found.temperatures is not temperatures or found.top_ks is not top_ks:
        proposal = _make_nothing(proposer, bs=bs, sampling_info=sampling_info, device=kwargs["device"])
        found = kept[bs] = _Nothing(temperatures=temperatures, top_ks=top_ks, proposal=proposal)
    found.proposal.draft_block_ids[:, 0].copy_(draft_input.bonus_tokens.view(-1))
    return found.proposal


def _make_nothing(proposer: Any, *, bs: int, sampling_info: Any, device: Any) -> Any:
    """Confidences are there, since SGLang looks for them wherever the draft has a head for them; they are
    zero."""
    from sglang.srt.speculative.dspark_components.dspark_draft import (
        DraftBlockResult,
        DraftProposal,
        resolve_draft_params,
    )

    gamma = proposer.gamma
    ids = torch.zeros((bs, gamma), dtype=torch.long, device=device)
    params = resolve_draft_params(sampling_info=sampling_info, bs=bs, device=device)
    has_confidence = proposer.draft_model.confidence_head is not None
    confidence = torch.zeros((bs, gamma), dtype=torch.float32, device=device) if has_confidence else None
    return DraftProposal(
        draft_block_ids=ids,
        draft_block=DraftBlockResult(
            draft_tokens=torch.zeros((bs, gamma), dtype=torch.long, device=device),
            corrected_logits=None,
            greedy_mask=params.greedy_mask,
            temperatures=params.temperatures,
            # One-hot: the accept's correction at the first position is exact for any drawn token.
            greedy_draft=True,
        ),
        confidence=confidence,
        confidence_raw=confidence,
        # A captured verify accepts by itself and commits; it honours the lengths that were staged for it.
        folded=ids.is_cuda,
    )


HOOK = Hook(
    target="sglang.srt.speculative.dspark_components.dspark_draft.DraftBlockProposer.propose",
    kind=HookKind.AROUND,
    replacement=draft_if_planned,
    reason="SGLang always drafts; a step in which no request verifies a draft token saves the draft's time",
    sglang_versions=("0.5.23",),
    fingerprint="f4b3593cefe9646a",
    remove_when="SGLang can leave the draft out of a step",
)
