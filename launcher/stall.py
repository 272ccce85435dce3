"""Says what a rank that logs nothing is probably waiting for, by the phase in which it fell silent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.engine_phase import Phase
from launcher.root_cause import RankLabel

# How long each phase may be silent on a healthy cluster, about three times what GB10 runs of V4.1-Flash on
# three nodes needed (loading bar to "Load weight end": 541 s; autotune 12 s; graphs 18 s; warm-up 14 s).
QUIET_S = {
    Phase.STARTING: 120.0,
    Phase.RENDEZVOUS: 30.0,
    Phase.LOADING: 180.0,
    Phase.POST_PROCESSING: 1500.0,
    Phase.DRAFT: 300.0,
    Phase.KV_POOL: 120.0,
    Phase.AUTOTUNE: 300.0,
    Phase.GRAPHS: 300.0,
    Phase.SERVER: 60.0,
    Phase.WARMUP: 120.0,
}

_STORIES = {
    Phase.STARTING: (
        "it is still importing the engine: a slow disk, a kernel being compiled, or a frozen process.",
        "Look on the node with `top` and `sparkctl logs`; a cold start from a slow disk gets faster the"
        " second time.",
    ),
    Phase.RENDEZVOUS: (
        "it waits at the rendezvous for a rank that has not come.",
        "Check that every node can reach the head's fabric address and port, and that each node's"
        " interface in the topology is the right one (`ip -br addr`).",
    ),
    Phase.LOADING: (
        "a weight file is read very slowly, or not at all.",
        "`iostat -x 2` on the node; an NFS mount that hangs shows up as processes in state D (`ps aux`).",
    ),
    Phase.POST_PROCESSING: (
        "the weights are being converted, which is silent and takes minutes.",
        "`nvidia-smi` on the node: a working GPU means it goes on; no load and growing swap (`free -g`)"
        " means it does not.",
    ),
    Phase.DRAFT: (
        "the draft model's weights are read very slowly, or not at all.",
        "`iostat -x 2` on the node.",
    ),
    Phase.KV_POOL: (
        "the KV pool is being allocated; swapping makes this endless.",
        "`free -g` and `vmstat 2` on the node; lower mem_fraction_static when swap is in use.",
    ),
    Phase.AUTOTUNE: (
        "kernels are being compiled or tuned; a kernel cache on NFS or read-only makes this very slow.",
        "`ps aux | grep -E 'nvcc|ptxas|ninja'` on the node; put the cache on a local disk.",
    ),
    Phase.GRAPHS: (
        "graph capture does not end: often one rank waits in a collective for another.",
        "`nvidia-smi` on every node: full load at idle power is a spinning collective. Start again with"
        " NCCL_DEBUG=INFO, or with --disable-cuda-graph to tell the two apart.",
    ),
    Phase.SERVER: (
        "the model is loaded but the HTTP server does not come up: its port may be busy.",
        "`ss -ltnp` on the head shows who holds the API port.",
    ),
    Phase.WARMUP: (
        "the first request got no answer: a rank is frozen, or a kernel is being compiled.",
        "`sparkctl status` for the ranks' processes; `ps aux | grep -E 'nvcc|ptxas|ninja'` on every node.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StallHint:
    explanation: str
    hint: str
    suspects: tuple[RankLabel, ...] = ()


def explain_stall(phase: Phase, silent_s: float, peers: Mapping[RankLabel, Phase | None]) -> StallHint | None:
    """None while the silence is normal for `phase`.

    `peers` are the other ranks' phases; None = that rank has logged nothing yet. Suspects are the peers that
    lag behind: ranks advance together, so the one that is furthest back holds up the others.
    """
    if phase is Phase.READY or silent_s < QUIET_S[phase]:
        return None
    story, hint = _STORIES[phase]
    explanation = f"Nothing logged for {silent_s:.0f} s while {phase.label}: {story}"
    lag = {label: -1 if peer is None else int(peer) for label, peer in peers.items()}
    furthest_back = min(lag.values(), default=int(phase))
    suspects = tuple(sorted(label for label, at in lag.items() if at == furthest_back and at < phase))
    if suspects:
        names = ", ".join(f"{label} ({_describe(peers[label])})" for label in suspects)
        explanation += f" Furthest behind: {names}; look there first."
    return StallHint(explanation=explanation, hint=hint, suspects=suspects)


def _describe(phase: Phase | None) -> str:
    return "nothing logged" if phase is None else phase.label
