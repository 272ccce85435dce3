from __future__ import annotations

import ast
import json
import shlex
import subprocess
import sys
import urllib.parse
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import launcher.redact
from launcher.redact import Masker, mask_text
from tests.launcher.engine_log_files import API_KEY, read_bytes

SECRET = "k3y/l2+Secret==8f'3\"1\\c0 x&y"
SPELLINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda s: s,
    "repr": repr,
    "json": json.dumps,
    "json_unicode": lambda s: json.dumps(s, ensure_ascii=False),
    "json_slash": lambda s: json.dumps(s).replace("/", "\\/"),
    "quote": lambda s: urllib.parse.quote(s, safe=""),
    "quote_plus": urllib.parse.quote_plus,
    "quote_lower": lambda s: urllib.parse.quote(s, safe="").lower() if s.islower() else urllib.parse.quote(s),
    "quote_twice": lambda s: urllib.parse.quote(urllib.parse.quote(s, safe=""), safe=""),
    "repr_of_repr": lambda s: repr(repr(s)),
    "json_of_repr": lambda s: json.dumps({"launch_command": repr({"api_key": s})}),
    "json_of_json": lambda s: json.dumps(json.dumps({"k": s})),
    "repr_of_bytes": lambda s: repr(s.encode()),
    "ascii": ascii,
    "shell": shlex.quote,
}
secrets = st.text(
    st.characters(codec="utf-8", min_codepoint=32, exclude_characters="\x7f"),
    min_size=8,
    max_size=40,
)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(at % (len(data) + 1) for at in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def mask_in_pieces(masker: Masker, pieces: list[bytes]) -> bytes:
    return b"".join(masker.feed(piece) for piece in pieces) + masker.finish()


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_masked_in_every_spelling(spelling: str) -> None:
    written = SPELLINGS[spelling](SECRET)
    masked = Masker([SECRET]).mask(f"before {written} after")
    assert "Secret" not in masked
    assert "8f" not in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


@settings(deadline=None)  # a busy machine is no failure
@given(secret=secrets, spelling=st.sampled_from(sorted(SPELLINGS)), cuts=st.lists(st.integers(0, 5000)))
@example(secret="\\" * 40, spelling="repr_of_repr", cuts=[3, 50])
@example(secret="a\\u0041bcdefg", spelling="json", cuts=[])
@example(secret="%25%2525", spelling="quote_twice", cuts=[4])
@example(secret="\U0001f3d6\ufe0f key \xe9\xfc", spelling="json_of_json", cuts=[7, 8, 9])
def test_no_cut_of_the_stream_leaks_a_secret(secret: str, spelling: str, cuts: list[int]) -> None:
    written = SPELLINGS[spelling](secret)
    core = written.strip("'\"b")
    data = f"one\n<<{written}>>\rtwo {written}".encode()
    masked = mask_in_pieces(Masker([secret]), cut(data, cuts)).decode()
    assert core not in masked
    assert masked.count("***") >= 2
    assert masked == Masker([secret]).mask(data.decode())


@settings(deadline=None)  # a busy machine is no failure
@given(
    data=st.binary(max_size=300),
    cuts=st.lists(st.integers(0, 300)),
    count=st.integers(1, 3),
)
def test_text_without_secrets_passes_unchanged(data: bytes, cuts: list[int], count: int) -> None:
    plain = data.replace(b":", b"").replace(b"=", b"").replace(b",", b"") * count
    assert mask_in_pieces(Masker(["no-such-secret-here"]), cut(plain, cuts)) == plain


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 60_000), max_size=60))
def test_a_recorded_log_differs_by_the_key_only_however_it_is_cut(cuts: list[int]) -> None:
    data = read_bytes("one-node", 0)
    assert API_KEY.encode() in data
    masked = mask_in_pieces(Masker([API_KEY]), cut(data, cuts))
    assert masked == data.replace(API_KEY.encode(), b"***")


def test_the_key_in_a_recorded_log_is_masked_even_when_it_is_not_known() -> None:
    data = read_bytes("one-node", 0)
    assert mask_in_pieces(Masker([]), [data]) == data.replace(API_KEY.encode(), b"***")


def test_masked_server_args_can_still_be_read() -> None:
    masked = Masker([API_KEY]).mask(read_bytes("one-node", 0).decode())
    (line,) = [line for line in masked.splitlines() if "server_args=" in line]
    arguments = ast.literal_eval(line.split("server_args=", 1)[1])
    assert arguments["api_key"] == "***"
    assert arguments["model_path"] == "/models/tiny-qwen3"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("'api_key': 'abc', 'x': 1", "'api_key': '***', 'x': 1"),
        ("ServerArgs(api_key='abc', x=1)", "ServerArgs(api_key='***', x=1)"),
        ('{"api_key": "a\\"c", "x": 1}', '{"api_key": "***", "x": 1}'),
        ('"{\\"api_key\\": \\"abc\\"}"', '"{\\"api_key\\": \\"***\\"}"'),
        ("'admin_api_key': 'abc'", "'admin_api_key': '***'"),
        ("--api-key abc --port 1", "--api-key *** --port 1"),
        ("--api-key=abc", "--api-key=***"),
        ("['--api-key', 'abc', '--port']", "['--api-key', '***', '--port']"),
        ("SPARKCTL_API_KEY=abc x", "SPARKCTL_API_KEY=*** x"),
        ("HF_TOKEN=abc", "HF_TOKEN=***"),
        ("HUGGING_FACE_HUB_TOKEN=abc", "HUGGING_FACE_HUB_TOKEN=***"),
        ("Authorization: Bearer abc.DEF-123", "Authorization: Bearer ***"),
        ("token hf_abcdefghijklmnopqrst!", "token ***!"),
        ("https://user:pass@host/x", "https://***@host/x"),
        ("ssl_keyfile_password='abc'", "ssl_keyfile_password='***'"),
    ],
)
def test_what_looks_like_a_secret_is_masked(text: str, masked: str) -> None:
    assert Masker([]).mask(text) == masked


@pytest.mark.parametrize(
    "text",
    [
        "'api_key': None, 'admin_api_key': None",
        '{"api_key": null}',
        "api_key=None",
        "#token: 40, token usage: 0.00",
        "max_total_num_tokens=8192, chunked_prefill_size=4096",
        "tcp://127.0.0.1:33900",
        "http://0.0.0.0:8888 (Press CTRL+C to quit) mail a@b",
        "'watermark_key': '<redacted>'",
        "--api-key",
        "Bearer of bad news",
        "hf_hub_download",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert Masker([]).mask(text) == text


def test_complete_lines_pass_at_once_and_the_open_line_is_held() -> None:
    masker = Masker([SECRET])
    assert masker.feed(b"a\nb\rc") == b"a\nb\r"
    assert masker.feed(b"") == b""
    assert masker.finish() == b"c"


def test_a_line_without_end_is_held_back_only_so_far() -> None:
    masker = Masker([API_KEY])
    held = most = 0
    out = bytearray()
    for i in range(400):
        piece = b"x" * 4999 + (API_KEY.encode() if i % 10 == 0 else b"")
        held += len(piece)
        passed = masker.feed(piece)
        out += passed
        held -= len(passed) + passed.count(b"***") * (len(API_KEY) - 3)
        most = max(most, held)
    out += masker.finish()
    assert most <= 270_000
    assert bytes(out) == (b"x" * 4999 + b"***" + b"x" * 4999 * 9) * 40


@settings(max_examples=15, deadline=None)
@given(at=st.integers(250_000, 270_000), step=st.integers(1, 60_000))
def test_a_secret_across_the_holding_limit_is_masked(at: int, step: int) -> None:
    data = b"x" * at + API_KEY.encode() + b"y" * 10_000
    pieces = [data[start : start + step * 10] for start in range(0, len(data), step * 10)]
    assert mask_in_pieces(Masker([API_KEY]), pieces) == b"x" * at + b"***" + b"y" * 10_000


@settings(deadline=None)  # a busy machine is no failure
@given(kept=st.integers(4, len(API_KEY)))
def test_a_secret_that_is_cut_off_by_a_crash_is_masked(kept: int) -> None:
    assert mask_in_pieces(Masker([API_KEY]), [b"args: " + API_KEY[:kept].encode()]) == b"args: ***"


def test_of_two_secrets_the_longer_is_masked_whole() -> None:
    assert mask_text("abcdefgh-1234 abcdefgh", ["abcdefgh", "abcdefgh-1234"]) == "*** ***"


@pytest.mark.parametrize(
    ("secret", "message"),
    [
        ("short", "8 to 512 characters, got 5"),
        ("x" * 513, "got 513"),
        ("two\nlines-", "no control characters"),
    ],
)
def test_a_secret_that_cannot_be_masked_is_refused_without_showing_it(secret: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Masker([secret])
    assert secret not in str(caught.value)


def test_text_that_is_no_utf8_survives() -> None:
    text = b"\xff\xfe key".decode("utf-8", "surrogateescape")
    assert Masker([SECRET]).mask(text) == text


def test_a_hostile_line_takes_no_endless_time() -> None:
    masker = Masker(["\\" * 64, "'" * 40, API_KEY])
    for text in ("\\" * 100_000, "'" * 100_000, "api_key" * 15_000, "a_" * 50_000, "://" + "a:" * 50_000):
        masker.mask(text)


def test_the_file_runs_alone_with_the_standard_library_only(tmp_path: Path) -> None:
    source = Path(launcher.redact.__file__)
    (tmp_path / "redact.py").write_bytes(source.read_bytes())
    code = "import redact; print(redact.mask_text('my-secret-key', ['my-secret-key']))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("***", "")


def test_a_lone_surrogate_goes_through() -> None:
    """YAML can write one; half a pair is no reason to fail, nor to let the secret pass."""
    masked = Masker([SECRET]).mask(f"\ud800 {SECRET} \udc80")
    assert masked.startswith("\ud800 ") and masked.endswith(" \udc80") and SECRET not in masked
