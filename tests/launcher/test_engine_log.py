from __future__ import annotations

import itertools
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.engine_log import parse_line
from tests.launcher.engine_log_files import CASES, read_logs


def test_a_scheduler_record_has_time_rank_words_and_text() -> None:
    parsed = parse_line("[2026-09-11 23:34:13 TP0 EP0] Load weight begin. avail mem=111.47 GB")
    assert parsed.time == datetime(2026, 9, 11, 23, 34, 13)
    assert parsed.rank_words == ("TP0", "EP0")
    assert parsed.text == "Load weight begin. avail mem=111.47 GB"


def test_a_main_process_record_has_no_rank_words() -> None:
    parsed = parse_line("[2026-09-11 23:34:13] INFO:     Started server process [83]")
    assert (parsed.rank_words, parsed.text) == ((), "INFO:     Started server process [83]")


def test_milliseconds_and_long_rank_words() -> None:
    parsed = parse_line("[2026-09-11 23:34:13.250 DP1 PP0 ATTN_CP2 MOE_DP0 TP3 EP3] x")
    assert parsed.time == datetime(2026, 9, 11, 23, 34, 13, 250000)
    assert parsed.rank_words == ("DP1", "PP0", "ATTN_CP2", "MOE_DP0", "TP3", "EP3")


def test_a_record_behind_a_progress_bar_on_the_same_line() -> None:
    parsed = parse_line("  0%|   | 0/4 [00:00<?, ?it/s][2026-09-11 23:46:45 TP0 EP0] multimem disabled")
    assert parsed.text == "multimem disabled"
    assert parsed.before == "  0%|   | 0/4 [00:00<?, ?it/s]"


def test_torch_cpp_records_take_the_year_from_outside() -> None:
    line = "[rank0]:[E1129 16:38:21.612811004 ProcessGroupGloo.cpp:2901] failed"
    parsed = parse_line(line, year=2026)
    assert parsed.time == datetime(2026, 11, 29, 16, 38, 21, 612811)
    assert (parsed.rank_words, parsed.text) == (("RANK0",), "failed")
    assert parse_line(line).time is None
    assert parse_line("[W1129 16:38:21.612811004 socket.cpp:469] [c10d] x", year=2026).text == "[c10d] x"


@pytest.mark.parametrize(
    "line",
    [
        "Traceback (most recent call last):",
        "RuntimeError: boom",
        "[AutoTuner]: Tuning trtllm::fused_moe",
        "[9999-99-99 99:99:99] a prompt",
        "[W0230 16:38:21.612811004 socket.cpp:469] no such day",
        "",
    ],
)
def test_other_lines_have_no_time(line: str) -> None:
    parsed = parse_line(line, year=2026)
    assert parsed.time is None
    assert not parsed.is_record


def test_text_without_time_comes_back_whole() -> None:
    assert parse_line("RuntimeError: boom").text == "RuntimeError: boom"


@settings(deadline=None)  # a busy machine is no failure
@given(st.text())
def test_no_line_is_refused(line: str) -> None:
    parse_line(line, year=2026)


@pytest.mark.parametrize("case", CASES)
def test_times_in_recorded_logs_never_go_back(case: str) -> None:
    for lines in read_logs(case).values():
        times = [parsed.time for line in lines if (parsed := parse_line(line)).time]
        # One second of slack: several processes write into one file.
        assert all((a - b).total_seconds() <= 1 for a, b in itertools.pairwise(times) if a and b)
