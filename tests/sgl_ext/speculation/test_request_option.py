"""custom_params of a request: what is understood and what is refused."""

from __future__ import annotations

import pytest

from sgl_ext.errors import SpecOptionError
from sgl_ext.speculation.conversation_memory import ConversationMemory, Lesson, page_keys
from sgl_ext.speculation.request_option import AUTO, OFF, SpecMode, SpecOption, read_spec_option


@pytest.mark.parametrize(
    ("params", "option"),
    [
        (None, AUTO),
        ({}, AUTO),
        ({"other": 1}, AUTO),
        ({"spec": "auto"}, AUTO),
        ({"spec": "off"}, OFF),
        ({"spec": False}, OFF),
        ({"spec": 0}, OFF),
        ({"spec": 3}, SpecOption(mode=SpecMode.FIXED, width=3)),
    ],
)
def test_understood(params: object, option: SpecOption) -> None:
    assert read_spec_option(params, block=5) == option


@pytest.mark.parametrize("wish", [True, 6, -1, 2.0, "on", "3", None, []])
def test_refused_by_name(wish: object) -> None:
    with pytest.raises(
        SpecOptionError, match=r'"spec"\] must be "auto", "off" or a width of 0 to 5'
    ) as refusal:
        read_spec_option({"spec": wish}, block=5)
    assert repr(wish) in refusal.value.message
    assert "block is 5" in refusal.value.hint


def test_custom_params_of_another_type_are_refused() -> None:
    with pytest.raises(SpecOptionError, match="must be an object, got list"):
        read_spec_option(["spec"], block=5)


def test_a_next_turn_is_found_by_the_longest_beginning() -> None:
    memory = ConversationMemory(3)
    first, second = (Lesson(chances=(chance,), probe_interval=None) for chance in (1, 2))
    turn_one = list(range(200))
    turn_two = turn_one + list(range(500, 700))
    memory.keep(page_keys(turn_one)[-1:], first)
    memory.keep(page_keys(turn_two)[-1:], second)
    assert memory.find(page_keys([*turn_two, 1, 2, 3])) == second
    assert memory.find(page_keys([*turn_one, *range(900, 1100)])) == first
    assert memory.find(page_keys([7, *turn_one])) is None
    assert page_keys(turn_one[:63]) == ()


def test_memory_stays_bounded_and_forgets_the_least_used() -> None:
    memory = ConversationMemory(3)
    lesson = Lesson(chances=(1,), probe_interval=8)
    for key in (b"a", b"b", b"c"):
        memory.keep([key], lesson)
    assert memory.find([b"a"]) == lesson
    memory.keep([b"d"], lesson)
    assert len(memory) == 3
    assert memory.find([b"b"]) is None
    assert memory.find([b"a"]) == lesson
