"""What lies on the GPU between a DSPARK draft block and the reads of its Engram rows, from a profiler trace.

A decode step is: draft graph (ends with the markov steps that sample the block), SGLang's own small launches,
verify graph (Engram hash, then on a forked stream the ids' export and the reads; beside it the metadata,
embedding and model). In traces from before the reads started at the graph's head, metadata and embedding come
first; they are read too. Kernels of one graph launch share its correlation id: so the parts are told apart.
Profiling every graph node slows the launches down, so a profiled gap is an upper bound.
"""

import gzip
import json
import statistics
from itertools import pairwise
from pathlib import Path
from typing import Any

_SAMPLED = ("_markov_sample_finish_kernel", "_markov_greedy_combine_kernel")
_HASH = "_engram_hash_kernel"
_EXPORT = "_export_ids_kernel"
_STAMP = "_stamp_kernel"
_DEQUANTISE = "_dequantise_kernel"
_EMBEDDED = "_hc_broadcast_kernel"  # what the model does to its embeddings, right before its own hash
_NAME_LENGTH = 90

Event = dict[str, Any]


def measure_gaps(events: list[Event], num_layers: int) -> dict[str, Any]:
    """Microseconds, per step and as medians; `between` is the whole list of the step with the median gap."""
    work = sorted(
        (event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")), key=_start
    )
    launches = {
        event["args"]["correlation"]: event
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    steps = []
    sampled = -1
    for idx, event in enumerate(work):
        if _is(event, *_SAMPLED):
            sampled = idx
        elif _is(event, _HASH) and sampled >= 0:
            steps.append(_measure_step(work, sampled, idx, launches, num_layers))
            sampled = -1  # the next hash without a draft before it is a prompt's
    if not steps:
        return {"error": f"no {_HASH} after a draft in the trace of {len(work)} events on the GPU"}
    ordered = sorted(steps, key=lambda step: float(step["gap_us"]))
    middle = ordered[len(ordered) // 2]
    numbers = [{key: value for key, value in step.items() if key != "between"} for step in steps]
    return {
        "steps": len(steps),
        "median": _medians(numbers),
        "between_median_step": middle["between"],
        "by_name": _sum_names([step["between"] for step in steps]),
        "period_us": _medians(
            [{"us": later["hash_start_us"] - step["hash_start_us"]} for step, later in pairwise(steps)]
        ),
        "rows": numbers,
    }


def _measure_step(
    work: list[Event], sampled: int, hashed: int, launches: dict[int, Event], num_layers: int
) -> dict[str, Any]:
    last_token, hash_kernel = work[sampled], work[hashed]
    draft, verify = last_token["args"]["correlation"], hash_kernel["args"]["correlation"]
    between = work[sampled + 1 : hashed]
    token_end = _end(last_token)
    written = next((event for event in between if _writes_block(event, draft)), None)
    draft_end = max([token_end, *(_end(event) for event in between if _launch(event) == draft)])
    verify_start = min(
        [_start(hash_kernel), *(_start(event) for event in between if _launch(event) == verify)]
    )
    step: dict[str, Any] = {
        "hash_start_us": _start(hash_kernel),
        "gap_us": _start(hash_kernel) - token_end,
        "written_us": None if written is None else _end(written) - token_end,
        "draft_rest_us": draft_end - token_end,
        "own_launches_us": verify_start - draft_end,
        "verify_before_hash_us": _start(hash_kernel) - verify_start,
        "idle_us": _idle(token_end, _start(hash_kernel), between),
        "kernels_between": len(between),
        "hash_us": hash_kernel["dur"],
    }
    call = launches.get(verify)
    # Positive: the verify graph was launched before the block existed, so the host held nothing up.
    step["verify_launched_before_block_us"] = None if call is None else token_end - _end(call)
    step |= _measure_rows(work, hashed, num_layers, token_end)
    step["between"] = [
        {
            "name": str(event["name"])[:_NAME_LENGTH],
            "part": {draft: "draft graph", verify: "verify graph"}.get(_launch(event), "own launch"),
            "start_us": round(_start(event) - token_end, 3),
            "us": event["dur"],
        }
        for event in between
    ]
    return step


def _measure_rows(work: list[Event], hashed: int, num_layers: int, token_end: float) -> dict[str, Any]:
    """From the hash on: when the reads may start, when each layer asks for its rows, how long it waits.

    hash_before_model_us: how much earlier than the model's own hash it ran; 0 where it is the model's own.
    """
    hash_start = _start(work[hashed])
    after = work[hashed + 1 :]
    ending = next((idx for idx, event in enumerate(after) if _is(event, _HASH)), len(after))
    after = after[:ending]
    export = next((event for event in after if _is(event, _EXPORT)), None)
    stamps = [event for event in after if _is(event, _STAMP)][:num_layers]
    users = [event for event in after if _is(event, _DEQUANTISE)][:num_layers]
    if export is None or len(stamps) != num_layers or len(users) != num_layers:
        return {"cut_off": True}
    return {
        "ids_on_host_us": _end(export) - hash_start,
        "reads_after_block_us": _end(export) - token_end,
        "hash_before_model_us": _lead(work[hashed], after),
        "layers": [
            {
                "asked_us": _start(stamp) - hash_start,
                "slack_us": _start(stamp) - _end(export),
                "waited_us": _start(user) - _end(stamp),
            }
            for stamp, user in zip(stamps, users, strict=True)
        ],
    }


def _lead(hash_kernel: Event, after: list[Event]) -> float:
    """From the hash to the end of what the model does before its own; the same graph launch alone."""
    embedded = (event for event in after if _is(event, _EMBEDDED) and _launch(event) == _launch(hash_kernel))
    first = next(embedded, None)
    return 0.0 if first is None else _end(first) - _start(hash_kernel)


def write_slice(events: list[Event], path: Path, num_steps: int = 3) -> None:
    """The trace of a few steps in the middle, small enough to keep: GPU work and graph launches alone."""
    hashes = sorted(_start(event) for event in events if event.get("cat") == "kernel" and _is(event, _HASH))
    first = max(len(hashes) // 2 - 1, 0)
    last = min(first + num_steps, len(hashes) - 1)
    kept = [
        event
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime")
        and hashes[first] <= _start(event) <= hashes[last]
    ]
    with gzip.open(path, "wt") as file:
        json.dump({"traceEvents": kept}, file)


def _writes_block(event: Event, draft: int) -> bool:
    """The sampler's last act is the copy of the stacked tokens to their buffer."""
    name = str(event["name"])
    copies = event["cat"] == "gpu_memcpy" or "direct_copy_kernel" in name
    return copies and _launch(event) == draft


def _idle(begin: float, end: float, between: list[Event]) -> float:
    """Of this time, how long no work at all was on the GPU."""
    idle, reached = 0.0, begin
    for event in between:
        idle += max(_start(event) - reached, 0.0)
        reached = max(reached, _end(event))
    return idle + max(end - reached, 0.0)


def _medians(rows: list[dict[str, Any]]) -> dict[str, Any]:
    keys = [key for key, value in (rows[0] if rows else {}).items() if isinstance(value, int | float)]
    values = {key: [row[key] for row in rows if isinstance(row.get(key), int | float)] for key in keys}
    return {
        key: {"p50": statistics.median(found), "min": min(found), "max": max(found)}
        for key, found in values.items()
        if key != "hash_start_us" and not isinstance(found[0], bool)
    }


def _sum_names(lists: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Per kernel name and part: calls and microseconds a step, in the order of their first appearance."""
    totals: dict[tuple[str, str], list[float]] = {}
    for rows in lists:
        for row in rows:
            total = totals.setdefault((row["part"], row["name"]), [0.0, 0.0])
            total[0] += 1
            total[1] += row["us"]
    return [
        {"part": part, "name": name, "calls": calls / len(lists), "us": us / len(lists)}
        for (part, name), (calls, us) in totals.items()
    ]


def _is(event: Event, *kernels: str) -> bool:
    return any(kernel in event["name"] for kernel in kernels)


def _launch(event: Event) -> int | None:
    found = event["args"].get("correlation")
    return None if found is None else int(found)


def _start(event: Event) -> float:
    return float(event["ts"])


def _end(event: Event) -> float:
    return float(event["ts"] + event["dur"])
