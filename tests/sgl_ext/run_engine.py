"""Runs SGLang's offline engine on the CPU for a list of prompts: python run_engine.py JOB.json OUT.json

JOB: {"engine": {engine arguments}, "requests": [{"ids": [..], "new": 8, "last": 8}]}, served in turn.
A request's "image": the seed of the picture that its one image token stands for.
"together": more of them, served as one batch afterwards; "retract_every": 3 takes one of a batch back to the
queue every so many steps.
OUT: per request the prompt's length (images have become tokens), the greedy tokens, log-probabilities of the
whole vocabulary for each new token and for the prompt's last `last` tokens, how many prompt tokens came from
the prefix cache, how often it was retracted.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from sgl_ext.stand_ins import add_stand_ins

DEFAULTS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "max_total_tokens": 8192,
    "max_running_requests": 4,
    "chunked_prefill_size": 2048,
    "context_length": 4096,
    "cuda_graph_backend_decode": "disabled",
    "cuda_graph_backend_prefill": "disabled",
    "sampling_backend": "pytorch",
    "grammar_backend": "none",
    # max_total_tokens bounds the pool; this must only not refuse on a busy machine.
    "mem_fraction_static": 0.8,
    "log_level": "warning",
    # An idle scheduler takes a core from whatever else the suite runs.
    "sleep_on_idle": True,
}


def draw_image(seed: int) -> Any:
    """Noise of 150 x 120 pixels."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (120, 150, 3), dtype=np.uint8))


def serve(engine: Any, requests: list[dict[str, Any]], vocab_size: int) -> list[dict[str, Any]]:
    """One batch."""
    images = [[draw_image(request["image"])] if "image" in request else None for request in requests]
    answers = engine.generate(
        image_data=images if any(images) else None,
        input_ids=[request["ids"] for request in requests],
        sampling_params=[
            {"temperature": 0, "max_new_tokens": request["new"], "ignore_eos": True} for request in requests
        ],
        return_logprob=True,
        # -1: none of the prompt's
        logprob_start_len=[
            len(request["ids"]) - last if (last := request.get("last", 1)) else -1 for request in requests
        ],
        token_ids_logprob=[list(range(vocab_size)) for _ in requests],
    )
    return [
        {
            "tokens": answer["output_ids"],
            "length": answer["meta_info"]["prompt_tokens"],
            "cached": answer["meta_info"]["cached_tokens"],
            "prompt": [
                [entry[0] for entry in row]
                for row in answer["meta_info"].get("input_token_ids_logprobs") or []
                if row
            ],
            "new": [[entry[0] for entry in row] for row in answer["meta_info"]["output_token_ids_logprobs"]],
            "retracted": answer["meta_info"]["num_retractions"],
        }
        for answer in answers
    ]


def retract_every(steps: int) -> None:
    """What SGLANG_TEST_RETRACT and _INTERVAL set; SGLang reads them while it is imported."""
    from sglang.srt.managers import scheduler

    scheduler.TEST_RETRACT, scheduler.TEST_RETRACT_INTERVAL = True, steps


def main() -> None:
    # sglang.Engine imports before it loads plugins; the server commands do not, and need no such call.
    add_stand_ins()
    import sglang

    job = json.loads(Path(sys.argv[1]).read_text())
    config = json.loads((Path(job["engine"]["model_path"]) / "config.json").read_text())
    if "retract_every" in job:
        retract_every(job["retract_every"])
    engine = sglang.Engine(**(DEFAULTS | job["engine"]))
    vocab_size = config["text_config"]["vocab_size"]
    batches = [[request] for request in job["requests"]] + ([job["together"]] if "together" in job else [])
    answers = [answer for batch in batches for answer in serve(engine, batch, vocab_size)]
    engine.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
