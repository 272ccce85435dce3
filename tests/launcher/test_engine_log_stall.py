from __future__ import annotations

import pytest

from launcher.engine_phase import Phase
from launcher.stall import QUIET_S, explain_stall
from tests.launcher.engine_log_files import label


def test_silence_within_the_usual_time_is_no_stall() -> None:
    assert explain_stall(Phase.RENDEZVOUS, 10, {}) is None
    assert explain_stall(Phase.POST_PROCESSING, 541, {}) is None


def test_a_ready_rank_may_be_silent_for_ever() -> None:
    assert explain_stall(Phase.READY, 1e9, {}) is None


def test_a_silent_rendezvous_names_the_peer_that_is_missing() -> None:
    stall = explain_stall(Phase.RENDEZVOUS, 45, {label(1): Phase.RENDEZVOUS, label(2): None})
    assert stall is not None
    assert stall.suspects == (label(2),)
    assert "rank that has not come" in stall.explanation
    assert "rank 2 on spark-c (nothing logged)" in stall.explanation
    assert "topology" in stall.hint


def test_a_peer_that_is_still_importing_is_the_suspect() -> None:
    stall = explain_stall(Phase.RENDEZVOUS, 45, {label(1): Phase.STARTING, label(2): Phase.RENDEZVOUS})
    assert stall is not None
    assert stall.suspects == (label(1),)


def test_peers_that_are_as_far_or_further_are_no_suspects() -> None:
    stall = explain_stall(Phase.LOADING, 500, {label(1): Phase.LOADING, label(2): Phase.READY})
    assert stall is not None
    assert stall.suspects == ()


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.READY])
def test_every_phase_has_a_story(phase: Phase) -> None:
    stall = explain_stall(phase, QUIET_S[phase], {})
    assert stall is not None
    assert phase.label in stall.explanation
    assert stall.hint
