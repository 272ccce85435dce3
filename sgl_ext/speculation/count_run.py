"""The hot loop of learning: a request's tested tokens, counted everywhere they count, in one pass.

It runs for every request of every step, on the host, between two launches: 16 requests of a block of 5 are 80
trials. Three methods say what it does, and test_count_run.py holds it to them.
"""

from __future__ import annotations

from collections.abc import Sequence

from sgl_ext.speculation.acceptance import AcceptanceEstimate
from sgl_ext.speculation.fixed_point import ONE
from sgl_ext.speculation.prediction_score import MEMORY_SHIFT, PredictionScore


def count_run(
    own: AcceptanceEstimate,
    everybody: AcceptanceEstimate,
    score: PredictionScore,
    *,
    width: int,
    accepted: int,
    others: Sequence[int],
) -> None:
    """score.observe_run(accepted, champions=others, challengers=own's chances of the tested tokens), then
    own.observe(width, accepted) and everybody.observe(width, accepted). others: what `everybody` said before
    the step, by position."""
    trials, successes, shift = own.trials, own.successes, own.memory_shift
    all_trials, all_successes, all_shift = everybody.trials, everybody.successes, everybody.memory_shift
    champion, challenger = score.champion, score.challenger
    for position in range(accepted):
        weight, count = trials[position], successes[position]
        error = others[position] - ONE
        champion += (error * error >> 16) - (champion >> MEMORY_SHIFT)
        error = (count << 16) // weight - ONE
        challenger += (error * error >> 16) - (challenger >> MEMORY_SHIFT)
        trials[position] = weight + ONE - (weight >> shift)
        successes[position] = count + ONE - (count >> shift)
        weight, count = all_trials[position], all_successes[position]
        all_trials[position] = weight + ONE - (weight >> all_shift)
        all_successes[position] = count + ONE - (count >> all_shift)
    tested = accepted
    if accepted < width:
        tested += 1
        weight, count = trials[accepted], successes[accepted]
        error = others[accepted]
        champion += (error * error >> 16) - (champion >> MEMORY_SHIFT)
        error = (count << 16) // weight
        challenger += (error * error >> 16) - (challenger >> MEMORY_SHIFT)
        trials[accepted] = weight + ONE - (weight >> shift)
        successes[accepted] = count - (count >> shift)
        weight, count = all_trials[accepted], all_successes[accepted]
        all_trials[accepted] = weight + ONE - (weight >> all_shift)
        all_successes[accepted] = count - (count >> all_shift)
    score.champion, score.challenger = champion, challenger
    score.num_trials += tested
