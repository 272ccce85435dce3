"""Row ids of real text: files found on the machine, a BPE tokenizer trained on them, V4.1's hash.

Prose is documentation (Markdown, reStructuredText, POD, plain text), code is Python and C. Equal files are
taken once, so that no licence text or vendored copy repeats.
"""

import hashlib
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
MAX_KIND_BYTES = 24_000_000
VOCAB_SIZE = 48_000
# Enough for every chunk that a measurement reads.
MAX_TOKENS = 160 * 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTrace:
    """Files in two orders: `together` as a long prompt or a session on one project has them, `mixed` with
    each file from another project, the hardest order for any cache."""

    kind: Kind
    together: NDArray[np.int64]  # [tokens, columns]
    mixed: NDArray[np.int64]
    num_files: int
    num_bytes: int


def load_traces(cache_dir: Path, roots: tuple[Path, ...], column_rows: int) -> dict[Kind, TextTrace]:
    """Finds the text, trains the tokenizer and hashes; keeps the token ids in cache_dir for the next run."""
    paths = [cache_dir / f"{kind}.npz" for kind in SUFFIXES]
    if not all(path.is_file() for path in (*paths, cache_dir / "tokenizer.json")):
        _tokenize_machine_text(cache_dir, roots)
    token_map = build_token_map(Tokenizer.from_file(str(cache_dir / "tokenizer.json")))
    hasher = RowHasher(make_layout(column_rows, token_map.num_classes), token_map, pad_token_id=2)

    def rows(tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.ascontiguousarray(hasher.hash_prompt(tokens[:MAX_TOKENS])[:, 0, :])

    traces: dict[Kind, TextTrace] = {}
    for kind, path in zip(SUFFIXES, paths, strict=True):
        with np.load(path) as saved:
            files = np.split(saved["tokens"], saved["starts"][1:])
            order = np.random.default_rng(0).permutation(len(files))
            traces[kind] = TextTrace(
                kind=kind,
                together=rows(saved["tokens"]),
                mixed=rows(np.concatenate([files[idx] for idx in order])),
                num_files=len(files),
                num_bytes=int(saved["num_bytes"]),
            )
    return traces


def _tokenize_machine_text(cache_dir: Path, roots: tuple[Path, ...]) -> None:
    cache_dir.mkdir(parents=True, exist_ok=True)
    texts = {kind: _collect(kind, roots) for kind in SUFFIXES}
    tokenizer = _train([text for kind_texts in texts.values() for text in kind_texts])
    for kind, kind_texts in texts.items():
        encoded = [item.ids for item in tokenizer.encode_batch(kind_texts, add_special_tokens=False)]
        np.savez(
            cache_dir / f"{kind}.npz",
            tokens=np.concatenate([np.array(ids, dtype=np.int64) for ids in encoded]),
            starts=np.cumsum([0, *(len(ids) for ids in encoded[:-1])]),
            num_bytes=sum(len(text.encode()) for text in kind_texts),
        )
    tokenizer.save(str(cache_dir / "tokenizer.json"))


def _collect(kind: Kind, roots: tuple[Path, ...]) -> list[str]:
    """Texts project by project (the folder above a file's own), projects in random order."""
    projects: dict[Path, list[Path]] = {}
    for path in sorted(path for root in roots for path in _walk(root) if path.suffix in SUFFIXES[kind]):
        projects.setdefault(path.parents[1], []).append(path)
    order = list(projects)
    random.Random(0).shuffle(order)
    texts: list[str] = []
    seen: set[bytes] = set()
    num_bytes = 0
    for path in (path for project in order for path in projects[project]):
        text = _read_once(path, seen)
        if text is None:
            continue
        texts.append(text)
        num_bytes += len(text)
        if num_bytes >= MAX_KIND_BYTES:
            return texts
    if num_bytes < MAX_KIND_BYTES // 4:
        raise EngramError(
            f"text for the {kind} trace must be at least {MAX_KIND_BYTES // 4} bytes, got {num_bytes} "
            f"({', '.join(map(str, roots))}).",
            hint="install packages with documentation and source code under these folders, and run it again",
        )
    return texts


def _read_once(path: Path, seen: set[bytes]) -> str | None:
    """The file's text; None when it is not UTF-8, of no useful size, or a copy of one read before."""
    raw = path.read_bytes()
    digest = hashlib.sha256(raw).digest()
    if digest in seen or not MIN_FILE_BYTES <= len(raw) <= MAX_FILE_BYTES:
        return None
    seen.add(digest)
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


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
