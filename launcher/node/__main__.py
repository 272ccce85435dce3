"""Dispatch one request on a node: `{"verb": ..., ...}` on stdin, JSON lines on stdout."""

from __future__ import annotations

import json
import signal
import sys
import traceback
from typing import Any

from launcher.node.answer import Refused, answer


def handle(request: dict[str, Any]) -> None:
    verb = request.pop("verb")
    if verb == "probe":
        from launcher.node.probe import probe

        answer(probe(**request))
    elif verb == "start":
        from launcher.node.start_run import start_run

        answer(start_run(**request))
    elif verb == "watch":
        from launcher.node.watch_run import watch_run

        watch_run(**request)
    elif verb == "stop":
        from launcher.node.stop_run import stop_run

        answer(stop_run(**request))
    elif verb == "runs":
        from launcher.node.list_runs import list_runs

        answer(list_runs(**request))
    elif verb == "observe":
        from launcher.node.observe_run import observe_run

        observe_run(**request)
    elif verb == "http":
        from launcher.node.http_request import http_request

        answer(http_request(**request))
    elif verb == "await_token":
        from launcher.node.await_token import await_token

        await_token(**request)
    elif verb == "read_log":
        from launcher.node.read_log import read_log

        read_log(**request)
    elif verb == "reports":
        from launcher.node.read_reports import read_reports

        answer(read_reports(**request))
    elif verb == "doctor":
        from launcher.node.doctor import doctor

        answer(doctor(**request))
    elif verb == "reach_listen":
        from launcher.node.reach_listen import reach_listen

        reach_listen(**request)
    elif verb == "reach_try":
        from launcher.node.reach_try import reach_try

        answer(reach_try(**request))
    elif verb == "collective":
        from launcher.node.collective import collective

        collective(**request)
    elif verb == "measure_table":
        from launcher.node.cost_table import measure_table

        measure_table(**request)
    elif verb == "put_table":
        from launcher.node.cost_table import put_table

        answer(put_table(**request))
    elif verb.startswith(("install_", "caches_")):
        from launcher.node.install_verbs import install_verb

        install_verb(verb, request)
    elif verb.startswith("weights_"):
        from launcher.node.weights_verbs import weights_verb

        weights_verb(verb, request)
    else:
        raise Refused(f"verb must be one the node code knows, got {verb!r}", "update sparkctl")


def main(argv: list[str]) -> int:
    if argv[:1] == ["supervise"]:
        from launcher.node.supervise import supervise

        return supervise(argv[1])
    try:
        request = sys.stdin.buffer.readline()
        signal.alarm(0)  # the bootstrap's, against a request that never arrives whole
        handle(json.loads(request))
    except Refused as refusal:
        answer({"error": refusal.message, "hint": refusal.hint, "refused": True, "detail": refusal.detail})
        return 3
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001 - the edge: the launcher shows it with the node's name
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = "{}:{} ({})".format(last.filename.rsplit("/", 1)[-1], last.lineno, last.name)
        answer({"error": f"{type(error).__name__}: {error}", "where": where})
        return 70
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
