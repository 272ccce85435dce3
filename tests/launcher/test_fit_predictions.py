"""What `fit` computes against public logs: within 3 %, and the same verdicts."""

from __future__ import annotations

import json

import pytest

from tests.launcher.fit_figures import Figure, figures, taken_over
from tests.launcher.fit_predictions import (
    BEGIN,
    DOCUMENT,
    END,
    FILE,
    MOST_DEVIATION,
    as_document,
    as_tables,
)
from tests.launcher.fit_verdicts import verdicts

FIGURES = list(figures())
EXPECTED_VERDICTS = {
    "native experts on two Sparks": "weights",
    "three Sparks, chunk 2048, prompt of 100000": "",
    "three Sparks, chunk 1024, prompt of 208000": "",
    "three Sparks, chunk 1024, prompt of 256000": "chunk-times-context",
    "three Sparks, 3,000,000 tokens": "headroom",
    "four Sparks, 8,000,000 tokens, prompt of 420,000": "headroom",
    "four Sparks, 6,000,000 tokens, prompt of 420,000": "",
    "four Sparks, ep 1: expert width 576": "expert-width",
    "eight Sparks, ep 1: expert width 288": "expert-width",
    "three Sparks, ep 3: 128 draft experts": "draft-experts",
    "four Sparks, 8,000,000 tokens pinned at mem-fraction 0.80": "warned: pool-clamped",
}


@pytest.mark.parametrize("figure", FIGURES, ids=lambda figure: figure.what)
def test_figure_is_within_three_percent(figure: Figure) -> None:
    assert abs(figure.deviation) <= MOST_DEVIATION


def test_verdicts_are_what_happened() -> None:
    assert {verdict.what: verdict.refused_by for verdict in verdicts()} == EXPECTED_VERDICTS


def test_constants_that_were_taken_over_still_give_their_figures() -> None:
    assert all(abs(figure.deviation) < 0.001 for figure in taken_over())


def test_result_file_and_document_hold_these_rows() -> None:
    """After a change: python -m tests.launcher.fit_predictions."""
    assert json.loads(FILE.read_text()) == json.loads(json.dumps(as_document()))
    text = DOCUMENT.read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == as_tables()
