from __future__ import annotations

import pytest

from launcher.bench.errors import BenchInvalid
from launcher.bench.output_checks import output_problem, refuse_bad_output, repeated_unit
from launcher.bench.send import CUT
from launcher.bench.wave import Ask, Wave
from launcher.results.records import RequestRecord, text_sha256


def record(text: str, tokens: int = 50) -> RequestRecord:
    return RequestRecord(
        request_id="a-1", protocol="sparkctl-1", suite="decode", case="prose", concurrency=1, round=1,
        warm_up=False, prompt_sha256="0" * 64, prompt_tokens=5, cached_tokens=None, completion_tokens=tokens,
        start_s=0, first_token_s=1, chunk_times_s=(1.0,), end_s=2, finish_reason="stop", error=None,
        output_sha256=text_sha256(text), output_text=text, seed=1, max_tokens=64,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "empty"),
        ("  \n", "empty"),
        ("a\ufffdb\ufffdc\ufffd", "garbled"),
        ("well " + "!" * 90, "garbled"),
        ("\x01\x02\x03" * 20, "garbled"),
        ("and so the boat " * 40, "repeated"),
    ],
)
def test_what_is_no_text_is_named(text: str, kind: str) -> None:
    found = output_problem(record(text))
    assert found is not None and found[0] == kind


@pytest.mark.parametrize(
    "text",
    [
        "The pilot counted eleven boats.",
        " ".join(map(str, range(1, 400))),
        "\n".join(f"| {n} | boat {n * 7} | {n * n} |" for n in range(200)),
        "half a character at the end \ufffd",
        "def f():\n    return 1\n" + "-" * 60,
    ],
)
def test_text_is_text(text: str) -> None:
    assert output_problem(record(text)) is None


def test_a_loop_is_found_with_its_unit() -> None:
    found = repeated_unit("It began well. " + "tick tock " * 50)
    assert found is not None and found[1] >= 6


def test_an_answer_of_another_length_than_forced_is_refused() -> None:
    wave = Wave(suite="decode", case="prose", concurrency=1, round=1,
                asks=(Ask(name="1", body={"max_tokens": 64, "ignore_eos": True}),))  # fmt: skip
    whole, early = record("The pilot counted.", 64), record("The pilot counted.", 50)
    assert refuse_bad_output(wave, [whole, early.model_copy(update={"finish_reason": CUT})], ()) == []
    with pytest.raises(BenchInvalid, match=r"must be answered with 64 tokens \(--force-length\), got 50"):
        refuse_bad_output(wave, [whole, early], ())
