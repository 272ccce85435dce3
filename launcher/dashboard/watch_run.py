"""One open run, followed: its nodes, the figures of its engine, and the proof that it generates."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace

from launcher.cluster_status import probe_token
from launcher.connect import SshOptions, connect
from launcher.dashboard.engine_metrics import EngineSample, read_sample
from launcher.dashboard.history import History
from launcher.dashboard.run_facts import PROOF_S, Proof, RunNow
from launcher.dashboard.watch_node import PERIOD_S, NodeWatch
from launcher.redact import Masker
from launcher.run_record import RunRecord


class RunWatch:
    """`probes`: ask for one token when none was seen for PROOF_S; without, only the users' tokens prove."""

    def __init__(self, record: RunRecord, key: str | None, options: SshOptions, *, probes: bool,
                 clock: Callable[[], float]) -> None:  # fmt: skip
        self._record = record
        self._key = key
        self._probes = probes
        self._clock = clock
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._proof = Proof()
        self._history = History()
        self._sample: EngineSample | None = None
        self._metrics_problem = "not asked yet"
        self._stack = ExitStack()
        mask = Masker((key,) if key else ()).mask
        plan = record.plan
        remotes = {node.name: connect(node.node, options) for node in plan.nodes}
        for remote in remotes.values():
            self._stack.callback(remote.close)
        self._head = remotes[plan.head.name]
        self._nodes = [
            NodeWatch(
                node,
                plan,
                remotes[node.name],
                api_key=key,
                from_start=record.status == "starting",
                mask=mask,
                clock=clock,
            )
            for node in plan.nodes
        ]

    def open(self) -> None:
        for node in self._nodes:
            node.open()
        for target in (self._watch_metrics, self._watch_proof):
            threading.Thread(target=target, daemon=True).start()

    def close(self) -> None:
        self._closing.set()
        for node in self._nodes:
            node.close()
        self._stack.close()

    def update(self, record: RunRecord) -> None:
        with self._lock:
            self._record = record

    def now(self) -> RunNow:
        with self._lock:
            return RunNow(
                record=self._record,
                nodes=tuple(node.now() for node in self._nodes),
                proof=self._proof,
                history=self._history.copy(),
                metrics_problem=self._metrics_problem,
            )

    def _watch_metrics(self) -> None:
        seen_s = 0.0
        while not self._closing.wait(PERIOD_S / 4):
            at_s, answer = self._nodes[0].metrics()
            if at_s <= seen_s:
                continue
            seen_s = at_s
            if answer.get("status") != 200:
                problem = answer.get("failed") or f"/metrics answered HTTP {answer.get('status')}"
                self._take_sample(None, str(problem))
                continue
            workers = (node.metrics()[1] for node in self._nodes[1:])
            texts = [worker["body"] for worker in workers if worker.get("status") == 200]
            try:
                self._take_sample(read_sample(at_s, answer["body"], texts), "")
            except ValueError as error:
                self._take_sample(None, str(error))

    def _take_sample(self, sample: EngineSample | None, problem: str) -> None:
        with self._lock:
            self._metrics_problem = problem
            if sample is None:
                return
            before, self._sample = self._sample, sample
            self._history.add(sample)
            if before and (sample.decode_tokens or 0.0) > (before.decode_tokens or 0.0) > 0.0:
                self._proof = replace(self._proof, token_s=sample.at_s, failure="")

    def _watch_proof(self) -> None:
        while not self._closing.wait(0.5):
            now_s = self._clock()
            proof = self._proof
            newest_s = max(proof.token_s or 0.0, proof.failed_s or 0.0)
            due_s = newest_s + (PROOF_S if proof.holds() else PROOF_S / 6) if newest_s else 0.0
            if not self._probes or now_s < due_s or not self._may_serve():
                continue
            found = probe_token(self._head, self._record.plan, self._key)
            if self._closing.is_set():
                return
            with self._lock:
                if "token" in found:
                    self._proof = Proof(token_s=self._clock(), seconds=found["seconds"])
                else:
                    failure = str(found["failed"])
                    self._proof = replace(self._proof, failed_s=self._clock(), failure=failure)

    def _may_serve(self) -> bool:
        """The head's engine lives, and was ready once: a token is not asked of one that loads."""
        heard = self._nodes[0].now().heard
        run = heard.value if heard is not None and heard.error is None else None
        return run is not None and run["status"] == "running" and self._nodes[0].is_ready
