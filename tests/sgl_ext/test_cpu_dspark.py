"""DSpark (block 5) in SGLang's own scheduler on the CPU: drafted greedy output is the serial one.

The draft often agrees with the target (agreeing_draft.py), so steps accept none, some and all of a block.
One serial engine and drafting ones of 1 and 2 ranks serve the same traffic, all at once. The one of 2 ranks
decides widths for each request (SPARKCTL_SPEC) and verifies ragged blocks; the other is SGLang's own, of
whole blocks. Both read their Engram rows from packed files; the serial one has SGLang's tables in memory, so
a row that is wrong in a verify step, after a refused draft or after an abort would show. 3 ranks with a draft
that hardly agrees are in test_cpu_v41.py.
"""

from __future__ import annotations

import importlib.util
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.sgl_ext.agreeing_draft import build_agreeing
from tests.sgl_ext.engine_forks import EngineForks
from tests.sgl_ext.engine_variables import cpu_engine_variables
from tests.sgl_ext.forward_witness import write_distribution
from tests.sgl_ext.packed_rows import pack_rows, row_variables

pytestmark = [
    pytest.mark.sglang,
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="needs the sglang wheel"),
]

BLOCK = 5
ENGRAM_LAYERS = 2
CHUNK = 256
CLOSE = 0.25  # as in test_cpu_v41.py: another pick among equal index scores; a wrong row gives whole units
ENGINES = {"serial": 1, "drafted": 1, "drafted, 2 ranks": 2}  # name -> ranks
DSPARK = {"speculative_algorithm": "DSPARK", "speculative_dspark_block_size": BLOCK}
RAGGED = {"drafted, 2 ranks": {"SPARKCTL_SPEC": "1", "SGLANG_RAGGED_VERIFY_MODE": "compact"}}
WISHES: dict[int, object] = {0: "off", 1: 2, 3: 1, 4: "off"}  # of requests that run together
NOT_COMPARED = ("aborted", "after the abort", "sampled", "bad wish")
# Every argument is one of few words, so that a model of random weights comes to an end.
CITY = {"type": "string", "enum": ["Paris", "Potsdam", "Prague"]}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": properties, "required": list(properties)},
        },
    }
    for name, properties in (
        ("get_weather", {"city": CITY, "days": {"type": "integer", "enum": [1, 3, 10]}}),
        ("get_time", {"city": CITY}),
    )
]
Answers = dict[str, dict[str, Any]]


def prompt(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 900) for _ in range(length)]


# Lengths around the sliding window (128), the page (256) and the index's top 512; more than run at once.
TOGETHER = [(5, 40), (700, 20), (33, 30), (260, 25), (90, 12), (1, 17), (127, 9), (515, 14)]
STAGES = [
    [{"name": "plain", "ids": prompt(40, 5), "new": 32}],
    [{"name": "chunked", "ids": prompt(1300, 6), "new": 24}],
    [
        *(
            {
                "name": f"together {idx}",
                "ids": prompt(length, 10 + idx),
                "new": new,
                "spec": WISHES.get(idx, "auto"),
            }
            for idx, (length, new) in enumerate(TOGETHER)
        ),
        {"name": "aborted", "ids": prompt(60, 99), "new": 60, "abort_after": 4},
    ],
    # Alone and off: no draft at all, then the same request drafts, and its turn as well.
    [{"name": "off", "ids": prompt(70, 21), "new": 12, "spec": "off"}],
    [{"name": "on again", "after": "off", "ids": prompt(2, 22), "new": 12}],
    # Grammars of two wishes and a request without one, in one batch.
    [
        {"name": "call", "ids": prompt(24, 31), "new": 120, "tools": TOOLS},
        {"name": "call, off", "ids": prompt(24, 31), "new": 120, "tools": TOOLS, "spec": "off"},
        {"name": "another call", "ids": prompt(50, 32), "new": 120, "tools": TOOLS},
        {"name": "any text", "ids": prompt(30, 33), "new": 40, "sampling": {"regex": r"[\s\S]*"}},
        {"name": "beside calls", "ids": prompt(30, 33), "new": 40},
    ],
    [
        {"name": "sampled", "ids": prompt(20, 23), "new": 20, "sampling": {"temperature": 1.0}},
        {"name": "bad wish", "ids": prompt(20, 24), "new": 3, "spec": 9},
    ],
    [
        {"name": "hit", "ids": prompt(1300, 6), "new": 24},
        {"name": "next turn", "after": "together 1", "ids": prompt(9, 77), "new": 20},
        {"name": "next long turn", "after": "chunked", "ids": prompt(3, 78), "new": 20},
        {"name": "after the abort", "after": "aborted", "ids": prompt(5, 79), "new": 9},
    ],
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory, engine_forks: EngineForks) -> dict[str, Path]:
    """Where each engine ran; they share the cores, since most of a start is waiting for imports."""
    model = tmp_path_factory.mktemp("v41") / "model"
    build_agreeing(model, seed=1)
    packed = tmp_path_factory.mktemp("packed")
    pack_rows(model, packed, sorted({tp for name, tp in ENGINES.items() if name != "serial"}))
    folders = {name: tmp_path_factory.mktemp("run") for name in ENGINES}
    witness = write_distribution(tmp_path_factory.mktemp("witness"))
    running = {}
    for place, (name, tp) in enumerate(ENGINES.items()):
        engine = {
            "model_path": str(model),
            "tp_size": tp,
            "port": 45000 + 300 * place,
            "chunked_prefill_size": CHUNK,
            "grammar_backend": "xgrammar",
            "constrained_json_disable_any_whitespace": True,
            **({} if name == "serial" else DSPARK),
        }
        folder = folders[name]
        (folder / "job.json").write_text(json.dumps({"engine": engine, "stages": STAGES}))
        (folder / "reports").mkdir()
        environment = cpu_engine_variables(tp, folder / "reports") | RAGGED.get(name, {})
        if name != "serial":
            environment |= row_variables(packed)
        running[name] = engine_forks.start(
            "tests.sgl_ext.run_traffic",
            folder,
            environment,
            "job.json",
            "out.json",
            path=() if name == "serial" else [witness],
        )
    try:
        done = {name: fork.wait(300) for name, fork in running.items()}
    finally:
        for fork in running.values():
            fork.kill()
    for name, folder in folders.items():
        assert (folder / "out.json").is_file(), done[name].stderr[-4000:]
    return folders


@pytest.fixture(scope="module")
def answers(folders: dict[str, Path]) -> dict[str, Answers]:
    """What each engine answered."""
    return {name: json.loads((folder / "out.json").read_text()) for name, folder in folders.items()}


@pytest.mark.parametrize("drafted", ["drafted", "drafted, 2 ranks"])
def test_drafted_output_is_the_serial_output(answers: dict[str, Answers], drafted: str) -> None:
    for name, serial in answers["serial"].items():
        other = answers[drafted][name]
        if name in NOT_COMPARED:  # an abort ends where it finds the request, which differs
            continue
        assert other["tokens"] == serial["tokens"], name
        pairs = zip(other["logprobs"], serial["logprobs"], strict=True)
        assert max(abs(one - two) for one, two in pairs) < CLOSE, name
    for name in ("hit", "next long turn"):
        assert answers[drafted][name]["cached"] == answers["serial"][name]["cached"] == 1280
    assert answers[drafted]["next turn"]["cached"] == 512


@pytest.mark.parametrize("drafted", ["drafted", "drafted, 2 ranks"])
def test_an_abort_in_the_middle_of_a_draft(answers: dict[str, Answers], drafted: str) -> None:
    serial, other = answers["serial"]["aborted"], answers[drafted]["aborted"]
    assert serial["finish"] == other["finish"] == "abort"
    shorter = min(len(serial["tokens"]), len(other["tokens"]))
    assert 4 <= shorter < 60
    assert other["tokens"][:shorter] == serial["tokens"][:shorter]
    assert len(answers[drafted]["after the abort"]["tokens"]) == 9


@pytest.mark.parametrize("drafted", ["drafted", "drafted, 2 ranks"])
def test_steps_accept_some_and_refuse_some(answers: dict[str, Answers], drafted: str) -> None:
    done = [answer for answer in answers[drafted].values() if answer["finish"] in ("length", "stop")]
    tokens = sum(len(answer["tokens"]) for answer in done)
    steps = sum(answer["verify_steps"] for answer in done)
    assert 1.5 < tokens / steps < BLOCK + 1
    assert all(answer["verify_steps"] == 0 for answer in answers["serial"].values())


@pytest.mark.parametrize("drafted", ["drafted", "drafted, 2 ranks"])
def test_tool_calls_are_the_same_and_drafted(answers: dict[str, Answers], drafted: str) -> None:
    for name in ("call", "call, off", "another call"):
        serial, other = answers["serial"][name], answers[drafted][name]
        assert other["text"] == serial["text"]
        (call,) = json.loads(other["text"])
        assert call["name"] in ("get_weather", "get_time") and call["parameters"]["city"] in CITY["enum"]
        assert 0 < other["verify_steps"] < len(other["tokens"])
    assert answers[drafted]["call"]["tokens"] == answers[drafted]["call, off"]["tokens"]
    # Forced tokens surprise this draft. Where the grammar leaves the choice, drafts are accepted under it.
    free = answers[drafted]["any text"]
    assert free["tokens"] == answers["serial"]["any text"]["tokens"]
    assert free["verify_steps"] < 0.8 * len(free["tokens"])


def test_a_wish_is_kept_and_a_bad_one_refused_by_name(answers: dict[str, Answers]) -> None:
    decided, stock = answers["drafted, 2 ranks"], answers["drafted"]
    for name in ("off", "together 0", "together 4"):  # one token a step; the first one comes from the prefill
        assert decided[name]["verify_steps"] == len(decided[name]["tokens"]) - 1, name
        assert stock[name]["verify_steps"] < len(stock[name]["tokens"]) - 1, name
    assert decided["on again"]["verify_steps"] == stock["on again"]["verify_steps"]  # the draft stayed warm
    assert decided["bad wish"]["finish"] == "abort"
    assert 'must be "auto", "off" or a width of 0 to 5, got 9' in decided["bad wish"]["message"]
    assert all(len(answers[name]["sampled"]["tokens"]) == 20 for name in ENGINES)


@pytest.mark.parametrize(
    ("drafted", "rank"), [("drafted", 0), ("drafted, 2 ranks", 0), ("drafted, 2 ranks", 1)]
)
def test_rows_of_every_verify_are_asked_for_once_and_before_its_forward(
    folders: dict[str, Path], drafted: str, rank: int
) -> None:
    """By the row store's own counters: whole blocks, ragged ones, beside prompts that are read in place."""
    lines = (folders[drafted] / f"forwards-{rank}.jsonl").read_text().splitlines()
    seen: Counter[str] = Counter()
    for number, line in enumerate(lines):
        forward = json.loads(line)
        verify = forward["mode"] == "TARGET_VERIFY"
        wanted = (ENGRAM_LAYERS, 0) if verify else (0, ENGRAM_LAYERS)
        assert (forward["before"], forward["during"]) == wanted or number == 0, (number, forward)
        rows = forward["tokens"] * ENGRAM_LAYERS * 24 // ENGINES[drafted]
        assert forward["rows"] == rows or number == 0, (number, forward)
        seen[forward["mode"]] += 1
    assert seen["TARGET_VERIFY"] > 50 and seen["EXTEND"] > 5
