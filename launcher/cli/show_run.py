"""What `up` says once the cluster is ready: nodes, times, URL, a curl line, and how to stop."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

import typer

from launcher.call_node import ask_node
from launcher.cluster_view import NodeView
from launcher.launch_cluster import LaunchResult
from launcher.plan import LaunchPlan
from launcher.remote import Remote
from launcher.run_record import RunRecords

CHAT_TOKENS = 32
CHAT_TIMEOUT_S = 120.0


def show_ready(
    results: Sequence[LaunchResult], remotes: Mapping[str, Remote], records: RunRecords, *, as_json: bool
) -> None:
    """A chat request gives tokens/s; then the table. `as_json`: the same facts as one object. The last of
    `results` has the API: the router's, or the only one.
    """
    plan = results[-1].record.plan
    key = records.read_key(plan.run_id)
    chat = chat_once(remotes[plan.head.name], plan, key)
    if as_json:
        typer.echo(json.dumps(ready_facts(results, chat, records), indent=2))
        return
    typer.echo(ready_text(results, chat, records))


def chat_once(head: Remote, plan: LaunchPlan, key: str | None) -> dict[str, Any]:
    """One chat request through the head: `{"text", "tokens", "seconds"}` or `{"failed": reason}`."""
    body = {
        "model": plan.api.served_name,
        "messages": [{"role": "user", "content": "Say hello from this cluster."}],
        "max_tokens": CHAT_TOKENS,
        "temperature": 0,
    }
    started = time.monotonic()
    reply = ask_node(
        head, "http", timeout_s=CHAT_TIMEOUT_S + 10, host=plan.api.probe_host, port=plan.api.port,
        method="POST",
        path="/v1/chat/completions", body=body, api_key=key, request_timeout_s=CHAT_TIMEOUT_S,
    )  # fmt: skip
    if "failed" in reply:
        return {"failed": reply["failed"]}
    if reply["status"] != 200:
        return {"failed": f"HTTP {reply['status']}: {reply['body'][:300]}"}
    value = json.loads(reply["body"])
    return {
        "text": value["choices"][0]["message"].get("content") or "",
        "tokens": value["usage"]["completion_tokens"],
        "seconds": reply["seconds"],
        "elapsed_s": time.monotonic() - started,
    }


def ready_facts(results: Sequence[LaunchResult], chat: dict[str, Any], records: RunRecords) -> dict[str, Any]:
    record, plan = results[-1].record, results[-1].record.plan
    return {
        "run_id": plan.deployment or plan.run_id,
        "recipe": plan.recipe,
        "topology": plan.topology,
        "url": plan.api.url,
        "model": plan.api.served_name,
        "api_key_file": str(records.key_path(plan.run_id)) if plan.api.needs_key else None,
        "timings_s": record.timings,
        "first_token": results[-1].token,
        "chat": chat,
        "nodes": [
            {
                "name": view.name,
                "ranks": list(view.plan.ranks),
                "head": view.plan.is_head,
                "kv_tokens": view.tracker.facts.max_total_num_tokens,
                "weights_gb": view.tracker.facts.weight_gb,
            }
            for _, view in _engines(results)
        ],
    }


def _engines(results: Sequence[LaunchResult]) -> list[tuple[LaunchPlan, NodeView]]:
    return [
        (result.record.plan, view)
        for result in results
        if not result.record.plan.is_router
        for view in result.view.nodes.values()
    ]


def ready_text(results: Sequence[LaunchResult], chat: dict[str, Any], records: RunRecords) -> str:
    plan, timings = results[-1].record.plan, results[-1].record.timings
    run_id = plan.deployment or plan.run_id
    ready_s = sum(timings.values())
    rows = [("node", "rank", "state", "engine")]
    for own, view in _engines(results):
        role = "head" if view.plan.is_head else "worker"
        rows.append(
            (
                view.name,
                ",".join(map(str, view.plan.ranks)),
                f"serving ({', '.join(filter(None, (own.part, role)))})",
                f"sglang {plan.sglang_version}",
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    lines += ["", f"ready after {ready_s:.1f} s (engine {timings['engine_s']:.1f} s), run {run_id}"]
    if "failed" in chat:
        lines.append(f"chat: failed: {chat['failed']}")
    else:
        rate = chat["tokens"] / chat["seconds"]
        lines.append(
            f"chat: {chat['tokens']} tokens in {chat['seconds']:.2f} s, {rate:.1f} tokens/s: "
            f"{chat['text'].strip()[:100]!r}"
        )
    router = " (sglang-router)" if plan.is_router else ""
    lines += ["", f"URL    {plan.api.url}/v1{router}"]
    if plan.head.node.connection != "local" and plan.api.host in ("127.0.0.1", "localhost", "::1"):
        lines.append(f"       on {plan.head.name} only; from here: {tunnel_command(plan)}")
    lines.append(f"try    {curl_line(plan, records)}")
    lines.append(f"stop   sparkctl down --run {run_id}")
    return "\n".join(lines)


def tunnel_command(plan: LaunchPlan) -> str:
    ssh = plan.head.node.ssh
    words = ["ssh", "-N", "-L", f"{plan.api.port}:{plan.api.probe_host}:{plan.api.port}"]
    words += ["-p", str(ssh.port)] if ssh.port else []
    words += ["-i", ssh.identity_file] if ssh.identity_file else []
    host = ssh.host or plan.head.name
    return shlex.join([*words, f"{ssh.user}@{host}" if ssh.user else host])


def curl_line(plan: LaunchPlan, records: RunRecords) -> str:
    """Ready to paste. A key is read from its file by the shell,
    so that it stands neither here nor in a history.
    """
    body = json.dumps(
        {"model": plan.api.served_name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}
    )
    line = f"curl -s {plan.api.url}/v1/chat/completions -H 'Content-Type: application/json' "
    if plan.api.needs_key:
        path = shlex.quote(str(records.key_path(plan.run_id)))
        line += f'-H @<(printf "Authorization: Bearer %s" "$(cat {path})") '
    return line + f"-d {shlex.quote(body)}"
