"""`python -m sgl_ext.tiny_model KIND OUT`: what `sparkctl tiny-model` runs, without torch or SGLang."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from sgl_ext.errors import SettingError, SglExtError
from sgl_ext.tiny_model.qwen3 import make_qwen3_files
from sgl_ext.tiny_model.write_directory import write_directory

KINDS: dict[str, Callable[[], dict[str, bytes]]] = {"qwen3": make_qwen3_files}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sgl_ext.tiny_model", description=__doc__)
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out.expanduser().absolute()
    try:
        files = KINDS[arguments.kind]()
        written = write_directory(out, files)
    except SglExtError as error:
        print(json.dumps({"message": error.message, "hint": error.hint}), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        message = f"The output directory must be writable, got {error.strerror} ({error.filename or out})."
        print(json.dumps({"message": message, "hint": "name another directory"}), file=sys.stderr)
        return SettingError.exit_code
    total_bytes = sum(map(len, files.values()))
    print(
        json.dumps({"path": str(out), "kind": arguments.kind, "total_bytes": total_bytes, "written": written})
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
