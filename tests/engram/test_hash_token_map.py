"""Which tokens share a class."""

import numpy as np
import pytest
from tokenizers import Tokenizer

from engram.errors import CheckpointError
from engram.token_map import build_token_map, load_token_map
from tests.engram.tiny_tokenizer import SPECIAL_TOKENS, make_tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return make_tokenizer()


def _classes_of(tokenizer: Tokenizer, texts: list[str]) -> list[int]:
    tokenizer.add_tokens(texts)
    token_map = build_token_map(tokenizer)
    return [int(token_map.class_ids[tokenizer.token_to_id(text)]) for text in texts]


@pytest.mark.parametrize(
    "texts",
    [
        ["qcafe", "QCAFE", "Qcaf\u1ebd", "qcafe\u0301"],
        [" zq", "zq", "zq ", "\tzq\n"],
        ["q\ufb01z", "qfiz", "QFIZ"],
        ["zq  zq", "zq zq", "zq\r\n\tzq"],
        ["\uff31\uff21\uff31", "qaq"],
    ],
)
def test_tokens_that_differ_only_in_form_share_a_class(texts: list[str]) -> None:
    assert len(set(_classes_of(make_tokenizer(), texts))) == 1


def test_blanks_keep_a_class_of_their_own() -> None:
    blank, blanks, newline, letter = _classes_of(make_tokenizer(), [" ", "   ", "\n", "a"])
    assert blank == blanks == newline
    assert blank != letter


def test_pieces_of_utf8_stay_apart(tokenizer: Tokenizer) -> None:
    pieces = [i for i in range(tokenizer.get_vocab_size()) if "\ufffd" in tokenizer.decode([i])]
    assert len(pieces) > 100  # bytes 0x80-0xff at least
    classes = build_token_map(tokenizer).class_ids[pieces]
    assert len(set(classes.tolist())) == len(pieces)


def test_special_tokens_are_read_with_their_bars(tokenizer: Tokenizer) -> None:
    classes = build_token_map(tokenizer).class_ids[: len(SPECIAL_TOKENS)]
    assert len(set(classes.tolist())) == len(SPECIAL_TOKENS)


def test_classes_are_numbered_by_first_appearance(tokenizer: Tokenizer) -> None:
    token_map = build_token_map(tokenizer)
    _, first = np.unique(token_map.class_ids, return_index=True)
    assert len(first) == token_map.num_classes
    assert np.all(np.diff(first) > 0)


def test_load_refuses_another_number_of_classes(tokenizer: Tokenizer, tmp_path) -> None:
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    found = build_token_map(tokenizer).num_classes
    assert load_token_map(tmp_path, expected_classes=found).num_classes == found
    with pytest.raises(CheckpointError, match=rf"must be 99092 .*got {found}"):
        load_token_map(tmp_path, expected_classes=99_092)


def test_load_refuses_a_missing_or_broken_tokenizer(tmp_path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        load_token_map(tmp_path, expected_classes=1)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="must be a tokenizer"):
        load_token_map(tmp_path, expected_classes=1)
