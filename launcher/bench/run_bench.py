"""Carry out a benchmark: wave after wave, records on disk at once,
checks after each, the manifest at the end.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from launcher.bench.describe_run import describe_run
from launcher.bench.effect_checks import (
    expected_features,
    refuse_impossible,
    refuse_inactive,
    refuse_no_effect,
    refuse_no_rows,
    refuse_wrong_cache,
    untold_cache,
)
from launcher.bench.endpoint import Endpoint, ServerFacts, ask_server, flush_cache
from launcher.bench.engine_metrics import read_metrics, total
from launcher.bench.errors import BenchInvalid
from launcher.bench.http_stream import StreamLimits
from launcher.bench.node_samples import MeasuredNodes, NodeSampler
from launcher.bench.output_checks import refuse_bad_output
from launcher.bench.plan_waves import plan_waves
from launcher.bench.protocols.lil import lil_report
from launcher.bench.protocols.sparkdash import answer_details, sparkdash_report
from launcher.bench.read_answer import Answer
from launcher.bench.run_folder import RunFolder
from launcher.bench.send import Sender
from launcher.bench.wave import Wave
from launcher.connect import SshOptions
from launcher.registry.recipe_lock import recipe_sha256
from launcher.results.finish_run import finish_run
from launcher.results.manifest import Manifest
from launcher.results.read_records import read_records
from launcher.results.records import EngineSample, RequestRecord
from launcher.results.run_directory import ENGINE, NODES, REQUESTS
from launcher.run_record import lock_in_effect
from launcher.write_file import write_file

# The engine publishes its counters beside the answer, not before it.
SETTLE_S = 0.1
GENERATED = "sglang:generation_tokens_total"


@dataclass(slots=True, kw_only=True)
class Bench:
    """One run against one endpoint. `tell` gets (wave or None, text) for a person."""

    folder: RunFolder
    endpoint: Endpoint
    options: SshOptions
    tell: Callable[[str], None]
    on_wave: Callable[[Wave, Sequence[RequestRecord], float], None]
    on_plan: Callable[[int, int], None]
    notes: list[str] = field(default_factory=list)

    def run(self) -> Manifest:
        """Raises BenchRefused before anything is sent, BenchInvalid after a wave that is no result; its raw
        records stay. KeyboardInterrupt leaves what is measured, without a manifest.
        """
        settings = self.folder.settings
        facts = ask_server(self.endpoint)
        self.folder.begin_on(_what_runs(self.endpoint))
        features = expected_features(settings, facts, self.endpoint)
        refuse_inactive(features, facts, read_metrics(self.endpoint))
        plan = plan_waves(settings, self.endpoint, facts, self.tell)
        self.note(*plan.notes)
        done = self._finished_waves(plan.waves)
        left = [wave for wave in plan.waves if wave.key not in done]
        self.on_plan(len(plan.waves), len(done))
        origin_s = self.folder.origin_s()
        if any(wave.case.startswith("after restart") for wave in left):
            self._refuse_same_server()
        with self._sampler(origin_s) as sampler:
            nodes = sampler.describe() if sampler else MeasuredNodes()
            for wave in left:
                self._sample_nodes(sampler)
                self._run_wave(wave, facts, features, origin_s)
            self._sample_nodes(sampler)
            if sampler:
                self.note(*(f"{node}: not sampled: {said}" for node, said in sampler.problems.items()))
        refuse_no_rows(features, read_records(self.folder.path).engine_samples)
        return self._finish(facts, nodes)

    def note(self, *notes: str) -> None:
        for text in notes:
            if text not in self.notes:
                self.notes.append(text)
                self.tell(f"note: {text}")

    def _run_wave(self, wave: Wave, facts: ServerFacts, features: Sequence[str], origin_s: float) -> None:
        settings = self.folder.settings
        if wave.is_cold and facts.is_sglang and not flush_cache(self.endpoint):
            self.note("the prefix cache could not be flushed before cold prompts: only their text is unique")
        limits = StreamLimits(
            first_byte_s=settings.first_token_timeout_s,
            stall_s=settings.stall_timeout_s,
            total_s=settings.request_timeout_s,
        )
        sender = Sender(
            endpoint=self.endpoint, protocol=settings.protocol_label, limits=limits, origin_s=origin_s,
            keep=self._keep(origin_s),
        )  # fmt: skip
        started_s = time.monotonic()
        before = self._sample_engine(wave, "before", origin_s)
        records = asyncio.run(sender.send_wave(wave))
        time.sleep(SETTLE_S)
        after = self._sample_engine(wave, "after", origin_s)
        self.folder.sync()
        self._check(wave, records, before, after, features)
        self.on_wave(wave, records, time.monotonic() - started_s)

    def _keep(self, origin_s: float) -> Callable[[RequestRecord, Answer], None]:
        def keep(record: RequestRecord, answer: Answer) -> None:
            self.folder.append(REQUESTS, record)
            if self.folder.settings.protocol in ("sparkdash", "lil"):
                answer.usage_times = [
                    (round(at_s - origin_s, 6), count) for at_s, count in answer.usage_times
                ]
                self.folder.append_details(record.request_id, answer_details(answer))

        return keep

    def _check(
        self, wave: Wave, records: list[RequestRecord], before: EngineSample | None,
        after: EngineSample | None, features: Sequence[str],
    ) -> None:  # fmt: skip
        failed = [record for record in records if record.error is not None]
        if failed and (wave.repeat_for_s is None or len(failed) == len(records)):
            raise BenchInvalid(
                f"{wave.name} must be answered, {len(failed)} of {len(records)} failed: {failed[0].error}",
                hint=f"sparkctl status; then go on with: sparkctl bench --resume {self.folder.path}",
            )
        allow = self.folder.settings.allow
        if wave.warm_up and wave.cut_at_end:
            allow = ()
        self.note(*refuse_bad_output(wave, records, allow), *untold_cache(wave, records))
        _refuse_no_overlap(wave, records)
        refuse_wrong_cache(wave, before, after, records)
        if before is not None and after is not None:
            settings = self.folder.settings
            if not wave.cut_at_end:
                refuse_impossible(settings, wave, before, after, records)
            refuse_no_effect(features, wave, before, after, records)

    def _sample_engine(self, wave: Wave, when: str, origin_s: float) -> EngineSample | None:
        metrics = read_metrics(self.endpoint)
        if metrics is None:
            self.note("this endpoint has no /metrics of SGLang: no steps, no cross-check of the token counts")
            return None
        sample = EngineSample.model_validate(
            {
                "protocol": self.folder.settings.protocol_label, "suite": wave.suite, "case": wave.case,
                "concurrency": wave.concurrency, "round": wave.round, "warm_up": wave.warm_up, "when": when,
                "time_s": round(time.monotonic() - origin_s, 6), "metrics": metrics,
            }
        )  # fmt: skip
        self.folder.append(ENGINE, sample)
        return sample

    @contextmanager
    def _sampler(self, origin_s: float) -> Iterator[NodeSampler | None]:
        if self.endpoint.record is None:
            yield None
            return
        with NodeSampler(self.endpoint.record.plan, self.options, origin_s) as sampler:
            yield sampler

    def _sample_nodes(self, sampler: NodeSampler | None) -> None:
        for sample in sampler.sample_if_due() if sampler else ():
            self.folder.append(NODES, sample)

    def _finished_waves(self, waves: Sequence[Wave]) -> set[tuple[str, str, int, int]]:
        """Waves with every record; what an interrupted run left of another wave is removed and sent again."""
        records = read_records(self.folder.path)
        ended = {
            (item.suite, item.case, item.concurrency, item.round)
            for item in records.engine_samples
            if item.when == "after"
        }
        measured = any(records.engine_samples)
        finished = set()
        for wave in waves:
            own = [item for item in records.requests if item.request_id.startswith(wave.request_prefix)]
            failed = any(item.error for item in own) and wave.repeat_for_s is None
            whole = wave.key in ended if measured else len(own) >= len(wave.asks)
            notes = self._notes_again(wave, own) if own and whole and not failed else None
            if notes is not None:
                self.note(*notes)
                finished.add(wave.key)
            elif own:
                self.folder.drop_wave(wave.key, wave.request_prefix)
        return finished

    def _notes_again(self, wave: Wave, records: list[RequestRecord]) -> list[str] | None:
        """What was noted when the wave was measured, for the manifest of the whole run; None: no result."""
        try:
            notes = refuse_bad_output(wave, records, self.folder.settings.allow)
        except BenchInvalid:
            return None
        return [*notes, *untold_cache(wave, records)]

    def _refuse_same_server(self) -> None:
        """After a restart the engine's counters begin at zero."""
        now = total(read_metrics(self.endpoint) or {}, GENERATED)
        earlier = [total(item.metrics, GENERATED) for item in read_records(self.folder.path).engine_samples]
        before = max((value for value in earlier if value is not None), default=None)
        if now is not None and before is not None and now >= before:
            raise BenchInvalid(
                "the server must have been restarted since the cold and warm rounds, its counters went on",
                hint=f"sparkctl down; sparkctl up; sparkctl bench --resume {self.folder.path}"
                f" --after-restart",
            )

    def _finish(self, facts: ServerFacts, nodes: MeasuredNodes) -> Manifest:
        from launcher.results.report import missing_libraries, render_report

        records = read_records(self.folder.path).requests
        settings, details = self.folder.settings, self.folder.details()
        if settings.protocol == "sparkdash":
            report = sparkdash_report(records, details, self.endpoint.model)
            write_file(self.folder.path / "sparkdash.json", json.dumps(report, indent=1) + "\n")
        elif settings.protocol == "lil":
            report = lil_report(records, details, self.endpoint.model, settings.window_s)
            write_file(self.folder.path / "lil.json", json.dumps(report, indent=1) + "\n")
        facts_of_run = describe_run(
            self.folder, self.endpoint, facts, nodes, records, self.notes, ended_unix=time.time()
        )
        missing = missing_libraries()
        if missing:
            self.tell(
                f"note: no report and plots: {', '.join(missing)} not installed (pip install"
                f" sparkctl[report])"
            )
        return finish_run(self.folder.path, facts_of_run, render=None if missing else render_report)


def _refuse_no_overlap(wave: Wave, records: Sequence[RequestRecord]) -> None:
    """In `mixed` the short request must have met the long one's prefill, or nothing was tested."""
    if wave.suite != "mixed" or not any(ask.delay_s for ask in wave.asks):
        return
    long = next(record for record in records if record.request_id.endswith("-long"))
    others = [record for record in records if record is not long]
    prefill_end_s = long.first_token_s or long.end_s
    met = any(record.start_s < prefill_end_s and record.end_s > long.start_s for record in others)
    if not met and not wave.warm_up:
        raise BenchInvalid(
            f"{wave.name} must overlap: the long prompt was ready after {prefill_end_s - long.start_s:.2f} s",
            hint="this server is quicker than the delay: --mixed-delay-s 0.02, or a longer prompt",
        )


def output_directory(given: Path | None, settings_label: str, recipe: str) -> Path:
    """results/bench-RECIPE-PROTOCOL-TIME in the current directory, unless given."""
    if given is not None:
        return given
    return (
        Path("results") / f"bench-{recipe}-{settings_label}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    )


def _what_runs(endpoint: Endpoint) -> dict[str, str | None]:
    """Nothing of an endpoint that sparkctl did not start."""
    record = endpoint.record
    if record is None:
        return {"recipe": None, "lock": None}
    values, lock = record.plan.values, lock_in_effect(record)
    return {
        "recipe": recipe_sha256(values) if values is not None else None,
        "lock": lock.sha256 if lock is not None else None,
    }
