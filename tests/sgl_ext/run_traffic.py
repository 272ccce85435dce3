"""Serves stages of requests with SGLang's offline engine on the CPU: python run_traffic.py JOB.json OUT.json

JOB: {"engine": {engine arguments}, "stages": [[request, ..], ..]}; the requests of a stage run together.
Request: {"name": .., "ids": [..], "new": 8}; "after": NAME puts that request's prompt and answer in front of
ids; "abort_after": 3 aborts it once it has so many tokens; "spec" goes into custom_params; "sampling" adds
sampling parameters; "tools" asks for one call of one of them, as tool_choice "required" does in chats.
OUT: name -> tokens, text, log-probabilities, prompt tokens from the prefix cache, verify steps (DSpark).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from sgl_ext.stand_ins import add_stand_ins
from tests.sgl_ext.run_engine import DEFAULTS


def require_a_call(tools: list[dict[str, Any]]) -> dict[str, Any]:
    """Sampling parameters by which SGLang's chat endpoint makes the reply a call of one of the tools."""
    from sglang.srt.entrypoints.openai.protocol import Tool
    from sglang.srt.function_call.utils import get_json_schema_constraint

    schema = get_json_schema_constraint([Tool(**tool) for tool in tools], "required", False)
    return {"json_schema": json.dumps(schema), "ignore_eos": False}


async def serve(engine: Any, request: dict[str, Any], answers: dict[str, Any]) -> dict[str, Any]:
    ids = list(request["ids"])
    if "after" in request:
        before = answers[request["after"]]
        ids = [*before["ids"], *before["tokens"], *ids]
    rid = request["name"]
    stream = await engine.async_generate(
        input_ids=ids,
        sampling_params={
            "temperature": 0,
            "max_new_tokens": request["new"],
            "ignore_eos": True,
            **({"custom_params": {"spec": request["spec"]}} if "spec" in request else {}),
            **(require_a_call(request["tools"]) if "tools" in request else {}),
            **request.get("sampling", {}),
        },
        return_logprob=True,
        stream=True,
        rid=rid,
    )
    tokens: list[int] = []
    text = ""
    meta: dict[str, Any] = {}
    async for part in stream:
        tokens, text, meta = part["output_ids"], part["text"], part["meta_info"]
        if len(tokens) >= request.get("abort_after", sys.maxsize):
            engine.tokenizer_manager.abort_request(rid)
    return {
        "ids": ids,
        "tokens": tokens,
        "text": text,
        "logprobs": [entry[0] for entry in meta.get("output_token_logprobs", ())],
        "cached": meta.get("cached_tokens"),
        "verify_steps": meta.get("spec_verify_ct", 0),
        "finish": (meta["finish_reason"] or {}).get("type"),
        "message": (meta["finish_reason"] or {}).get("message"),
    }


async def serve_stages(engine: Any, stages: list[list[dict[str, Any]]]) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    for stage in stages:
        results = await asyncio.gather(*(serve(engine, request, answers) for request in stage))
        answers |= {request["name"]: result for request, result in zip(stage, results, strict=True)}
    return answers


def main() -> None:
    add_stand_ins()
    import sglang

    job = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(**(DEFAULTS | job["engine"]))
    answers = engine.loop.run_until_complete(serve_stages(engine, job["stages"]))
    engine.shutdown()
    Path(sys.argv[2]).write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
