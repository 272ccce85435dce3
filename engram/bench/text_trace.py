"""Row ids of real text: files found on the machine, a BPE tokenizer trained on them, V4.1's hash.

Prose is documentation (Markdown, reStructuredText, POD, plain text), code is Python and C. A file is taken
once by content, in an order that mixes projects, so that no licence text or vendored copy repeats.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engram.bench.synthetic_table import make_layout
from engram.errors import EngramError
from engram.hash_rows import RowHasher
from engram.token_map import build_token_map

Kind = Literal["prose", "code"]
SUFFIXES: dict[Kind, tuple[str, ...]] = {
    "prose": (".md", ".rst", ".pod", ".txt"),
    "code": (".py", ".h", ".c", ".cpp", ".hpp", ".pyi"),
}
MIN_FILE_BYTES = 2_000
MAX_FILE_BYTES = 400_000
# Enough for a warm cache of 64 k tokens and the measured chunks after it.
MAX_KIND_BYTES = 24_000_000
VOCAB_SIZE = 48_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTrace:
    kind: Kind
    row_ids: NDArray[np.int64]  # [tokens, columns]
    num_files: int
    num_bytes: int


def load_traces(cache_dir: Path, roots: tuple[Path, ...], column_rows: int) -> dict[Kind, TextTrace]:
    """Finds the text, trains the tokenizer and hashes; keeps the token ids in cache_dir for the next run."""
    token_files = {kind: cache_dir / f"tokens-{kind}.npy" for kind in SUFFIXES}
    notes_file = cache_dir / "tokens.json"
    tokenizer_file = cache_dir / "tokenizer.json"
    if not all(path.is_file() for path in (*token_files.values(), notes_file, tokenizer_file)):
        _tokenize_machine_text(cache_dir, roots)
    notes = json.loads(notes_file.read_text())
    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    token_map = build_token_map(tokenizer)
    hasher = RowHasher(make_layout(column_rows, token_map.num_classes), token_map, pad_token_id=2)
    traces: dict[Kind, TextTrace] = {}
    for kind, path in token_files.items():
        ids = hasher.hash_prompt(np.load(path))
        traces[kind] = TextTrace(kind=kind, row_ids=np.ascontiguousarray(ids[:, 0, :]), **notes[kind])
    return traces


def _tokenize_machine_text(cache_dir: Path, roots: tuple[Path, ...]) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    texts = {kind: _collect(kind, roots) for kind in SUFFIXES}
    tokenizer = _train([text for kind_texts in texts.values() for text in kind_texts])
    notes = {}
    for kind, kind_texts in texts.items():
        encoded = tokenizer.encode_batch(kind_texts, add_special_tokens=False)
        tokens = np.concatenate([np.array(item.ids, dtype=np.int64) for item in encoded])
        np.save(cache_dir / f"tokens-{kind}.npy", tokens)
        notes[kind] = {
            "num_files": len(kind_texts),
            "num_bytes": sum(len(text.encode()) for text in kind_texts),
        }
    tokenizer.save(str(cache_dir / "tokenizer.json"))
    (cache_dir / "tokens.json").write_text(json.dumps(notes))


def _collect(kind: Kind, roots: tuple[Path, ...]) -> list[str]:
    paths = sorted(path for root in roots for path in _walk(root) if path.suffix in SUFFIXES[kind])
    random.Random(0).shuffle(paths)
    texts, seen, num_bytes = [], set(), 0
    for path in paths:
        raw = path.read_bytes()
        digest = hashlib.sha256(raw).digest()
        if digest in seen or not MIN_FILE_BYTES <= len(raw) <= MAX_FILE_BYTES:
            continue
        seen.add(digest)
        try:
            texts.append(raw.decode())
        except UnicodeDecodeError:
            continue
        num_bytes += len(raw)
        if num_bytes >= MAX_KIND_BYTES:
            break
    if num_bytes < MAX_KIND_BYTES // 10:
        raise EngramError(
            f"text for the {kind} trace must be at least {MAX_KIND_BYTES // 10} bytes, got {num_bytes} "
            f"({', '.join(map(str, roots))}).",
            hint="name folders with documentation and source code: --text DIRECTORY",
        )
    return texts


def _walk(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            yield path


def _train(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
