from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.log_lines import LogLines
from tests.launcher.engine_log_files import CASES, read_bytes, split


def feed_in_pieces(data: bytes, cuts: list[int], lines: LogLines) -> list[str]:
    out = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(edges):
        out += lines.feed(data[start:end])
    return out + lines.finish()


def test_both_line_ends_count_and_empty_lines_are_left_out() -> None:
    assert split(b"a\nb\r\n\r\rc\n\nd") == ["a", "b", "c", "d"]


def test_an_unfinished_line_waits_for_its_end() -> None:
    lines = LogLines()
    assert lines.feed(b"half") == []
    assert lines.feed(b" line\nnext") == ["half line"]
    assert lines.finish() == ["next"]
    assert lines.finish() == []


def test_a_split_utf8_character_survives() -> None:
    arrow = "64\u219296\n".encode()
    lines = LogLines()
    assert [line for byte in arrow for line in lines.feed(bytes([byte]))] == ["64\u219296"]


def test_bytes_that_are_no_utf8_are_replaced() -> None:
    assert split(b"a\xffb\n") == ["a\ufffdb"]


def test_a_very_long_line_keeps_head_and_tail() -> None:
    lines = LogLines(head_bytes=4, tail_bytes=3)
    assert lines.feed(b"abcdefghij\nabcdefg\n") == ["abcd ...[3 bytes left out]... hij", "abcdefg"]
    assert lines.dropped_bytes == 3


def test_a_line_of_many_megabytes_does_not_pile_up() -> None:
    lines = LogLines()
    for _ in range(200):
        lines.feed(b"1, 2, 3, " * 10_000)
    (line,) = lines.feed(b"end\n")
    assert len(line) < 66_000
    assert line.endswith("end")
    assert lines.dropped_bytes == 200 * 90_000 + 3 - 64 * 1024


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"must be >= 1, got 0 and 3"):
        LogLines(head_bytes=0, tail_bytes=3)


@settings(deadline=None)  # a busy machine is no failure
@given(
    data=st.lists(
        st.sampled_from([b"\r", b"\n", b"\r\n", b"ab", "\u2192\U0001f3d6".encode(), b"\xff", b"long" * 9])
    ),
    cuts=st.lists(st.integers(0, 500)),
)
def test_chunks_never_change_the_lines(data: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(data)
    one = LogLines(head_bytes=7, tail_bytes=5)
    expected = one.feed(whole) + one.finish()
    other = LogLines(head_bytes=7, tail_bytes=5)
    assert feed_in_pieces(whole, cuts, other) == expected
    assert other.dropped_bytes == one.dropped_bytes


@settings(max_examples=30, deadline=None)
@given(case=st.sampled_from(CASES), cuts=st.lists(st.integers(0, 60_000), max_size=40))
def test_chunks_never_change_the_lines_of_recorded_logs(case: str, cuts: list[int]) -> None:
    data = read_bytes(case, 0)
    assert feed_in_pieces(data, cuts, LogLines()) == split(data)
