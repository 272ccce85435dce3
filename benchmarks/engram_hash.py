"""Times the native hasher on a 1 M-token prompt: both Engram layers, 24 columns each, one thread.

python benchmarks/engram_hash.py --out results/engram/hash-HOST.json
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from engram.hash_layout import make_hash_layout
from engram.hash_rows import RowHasher
from engram.model_config import EngramConfig
from engram.token_map import TokenMap

NUM_TOKENS = 1_000_000
ROUNDS = 7
RELEASED = EngramConfig(
    engram_layer_ids=(1, 14),
    engram_num_embeddings=(384_006_168, 384_016_682),
    engram_max_ngram_size=4,
    engram_vocab_size=16_000_000,
    engram_n_heads=8,
    engram_head_dim=256,
    engram_pad_token_id=2,
    engram_compressed_vocab_size=99_092,
    image_token_id=129_264,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out_path: Path = parser.parse_args().out
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rng = np.random.default_rng(0)
    # The real token map is not needed for timing: 129,280 entries of as many classes cost the same.
    class_ids = rng.integers(0, 99_092, 129_280).astype(np.int32)
    token_map = TokenMap(class_ids=class_ids, num_classes=99_092)
    tokens = rng.integers(0, 129_264, NUM_TOKENS)
    layout = make_hash_layout(RELEASED)
    cases = {
        "all_columns": RowHasher(layout, token_map, pad_token_id=2, image_token_id=129_264),
        "rank_0_of_3": RowHasher(layout, token_map, pad_token_id=2, image_token_id=129_264, rank=0, tp=3),
    }
    result: dict[str, object] = {
        "what": "seconds to hash one prompt on one core",
        "num_tokens": NUM_TOKENS,
        "cpu": _cpu_model(),
        "machine": platform.machine(),
        "argv": sys.argv[1:],
    }
    for name, hasher in cases.items():
        out = np.empty((NUM_TOKENS, 2, len(hasher.columns)), dtype=np.int64)
        out.fill(0)  # first touch of fresh memory is the host's cost, not the hasher's
        result[name] = {
            "new_output_s": [_time(lambda h=hasher: h.hash_prompt(tokens)) for _ in range(ROUNDS)],
            "given_output_s": [
                _time(lambda h=hasher, o=out: h.hash_prompt(tokens, out=o)) for _ in range(ROUNDS)
            ],
        }
    result["median_all_columns_new_output_s"] = statistics.median(result["all_columns"]["new_output_s"])
    out_path.parent.mkdir(parents=True, exist_ok=True)
    out_path.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


def _time(call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU part")):
            return line.split(":", 1)[1].strip()
    return "unknown"


if __name__ == "__main__":
    main()
