"""`python -m sgl_ext.tiny_model KIND OUT`: what `sparkctl tiny-model` runs, without torch or SGLang."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from sgl_ext.errors import SettingError, SglExtError
from sgl_ext.tiny_model.qwen3 import make_qwen3_files
from sgl_ext.tiny_model.v41_sizes import SIZES, resize
from sgl_ext.tiny_model.write_directory import write_directory

# Kind -> writer: (out, arguments) -> (bytes in the model's files, whether this run wrote them).
Writer = Callable[[Path, argparse.Namespace], tuple[int, bool]]


def _write_qwen3(out: Path, _: argparse.Namespace) -> tuple[int, bool]:
    files = make_qwen3_files()
    return sum(map(len, files.values())), write_directory(out, files)


def _write_v41(out: Path, arguments: argparse.Namespace) -> tuple[int, bool]:
    from sgl_ext.tiny_model.v41 import build_v41  # needs tokenizers, which qwen3 does without

    size = resize(SIZES[arguments.size], engram_vocab_size=arguments.engram_vocab_size)
    written = build_v41(
        out, size, seed=arguments.seed, report=lambda line: print(line, file=sys.stderr, flush=True)
    )
    return sum(path.stat().st_size for path in out.iterdir()), written


KINDS: dict[str, Writer] = {"qwen3": _write_qwen3, "v41": _write_v41}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sgl_ext.tiny_model", description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("out", type=Path)
    parser.add_argument("--size", choices=sorted(SIZES), default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engram-vocab-size", type=int, default=None)
    arguments = parser.parse_args()
    out = arguments.out.expanduser().absolute()
    try:
        total_bytes, written = KINDS[arguments.kind](out, arguments)
    except SglExtError as error:
        print(json.dumps({"message": error.message, "hint": error.hint}), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        message = f"The output directory must be writable, got {error.strerror} ({error.filename or out})."
        print(json.dumps({"message": message, "hint": "name another directory"}), file=sys.stderr)
        return SettingError.exit_code
    print(
        json.dumps({"path": str(out), "kind": arguments.kind, "total_bytes": total_bytes, "written": written})
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
