"""Serves one prompt, spoils the packed tables, serves another: python serve_then_spoil.py JOB.json OUT

JOB: {"engine": {engine arguments}, "prompts": [[ids], [ids]], "truncate": [paths], "touch": [paths]}. OUT
gets a line per reply.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from sgl_ext.stand_ins import add_stand_ins


def main() -> None:
    add_stand_ins()
    import sglang

    job = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(**job["engine"])
    for number, prompt in enumerate(job["prompts"]):
        reply = engine.generate(input_ids=prompt, sampling_params={"temperature": 0, "max_new_tokens": 4})
        with Path(sys.argv[2]).open("a") as out:
            out.write(json.dumps(reply["output_ids"]) + "\n")
        if number == 0:
            for table in job["truncate"]:
                os.truncate(table, 4096)
            for path in job["touch"]:
                Path(path).touch()
    engine.shutdown()


if __name__ == "__main__":
    main()
