"""Brings speculation to a built scheduler: the cost table, the same on every rank, or a refusal."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from sgl_ext.errors import SettingError
from sgl_ext.settings import SPEC_PLAIN_GRAPHS_VARIABLE, SPEC_TABLE_VARIABLE, SPEC_VARIABLE, Settings
from sgl_ext.speculation.controller import VerifyShape
from sgl_ext.speculation.cost_table import CostTable
from sgl_ext.speculation.cost_table_file import MeasuredEngine, check_rank_hashes, load_cost_table
from sgl_ext.speculation.engine_speculation import EngineSpeculation, set_speculation
from sgl_ext.speculation.rank_speculation import RankSpeculation

_logger = logging.getLogger(__name__)

UNTUNED = "untuned"
# context_tokens says at what length a table was measured; a running engine has no one length.
_ANY_CONTEXT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationReport:
    """What a rank decides from; `table_hash` is "untuned" without a table. graph_batches: batch sizes that a
    cost table should have."""

    engine: dict[str, object]
    table_hash: str
    table_path: str | None
    graph_batches: tuple[int, ...]
    max_batch: int


def attach_speculation(scheduler: Any, server_args: Any, settings: Settings) -> SpeculationReport:
    """Call once the scheduler is built. Raises CostTableError where this rank's table is not usable or not
    the other ranks', and SettingError where SGLang runs in a way that the width cannot be decided in."""
    from sglang.srt.runtime_context import get_parallel

    worker = scheduler.model_worker
    parallel = get_parallel()
    _refuse_impossible(parallel, worker._verify_planner.mode_value, settings)
    engine = describe_engine(worker, server_args, settings)
    path = settings.spec_table
    table, digest = None, UNTUNED
    if path is not None and path.exists():
        table, digest = load_cost_table(path, engine)
    elif parallel.tp_rank == 0:
        where = f" ({SPEC_TABLE_VARIABLE}={path})" if path else ""
        _logger.warning(
            "sparkctl: no cost table%s; requests verify whole blocks until `sparkctl tune spec` measures one",
            where,
        )
    group = parallel.tp_group.cpu_group if parallel.tp_size > 1 else None
    require_same_table(digest, group, parallel.tp_size)
    set_speculation(_make_speculation(worker, table, engine, server_args, group, parallel.tp_rank))
    batches, max_batch = _batches(server_args)
    return SpeculationReport(
        engine=engine.model_dump(),
        table_hash=digest,
        table_path=None if path is None else str(path),
        graph_batches=batches,
        max_batch=max_batch,
    )


def describe_engine(worker: Any, server_args: Any, settings: Settings) -> MeasuredEngine:
    """The engine as a cost table names it: the model by its served name and its config.json, which is the
    same on every node wherever the files lie."""
    config = Path(server_args.model_path) / "config.json"
    shape = hashlib.sha256(config.read_bytes()).hexdigest()[:12]
    graphs = "-plain-graphs" if settings.spec_plain_graphs else ""
    return MeasuredEngine(
        sglang=metadata.version("sglang"),
        model=f"{server_args.served_model_name or Path(server_args.model_path).name} (config {shape})",
        tp_size=server_args.tp_size,
        verify=worker._verify_planner.mode_value + graphs,
        block=worker.gamma,
        context_tokens=_ANY_CONTEXT,
    )


def _refuse_impossible(parallel: Any, verify: str, settings: Settings) -> None:
    from sglang.srt.environ import envs

    if parallel.attn_dp_enabled or parallel.pp_size > 1:
        raise SettingError(
            f"Attention DP and PP must be off when {SPEC_VARIABLE} is set, got one of them: their ranks "
            "serve different requests, so they cannot decide alike.",
            hint=f"unset {SPEC_VARIABLE} or the parallelism",
        )
    if settings.spec_plain_graphs and verify != "compact":
        raise SettingError(
            f"Verify must be compact when {SPEC_PLAIN_GRAPHS_VARIABLE} is set, got {verify}.",
            hint=f"unset {SPEC_PLAIN_GRAPHS_VARIABLE}, or set extensions.dspark.verify: compact",
        )
    if envs.SGLANG_SIMULATE_ACC_LEN.get() > 0:
        raise SettingError(
            f"SGLANG_SIMULATE_ACC_LEN must not be set when {SPEC_VARIABLE} is set, got "
            f"{envs.SGLANG_SIMULATE_ACC_LEN.get()}: simulated acceptance ignores widths.",
            hint="unset one of them",
        )


def require_same_table(digest: str, group: Any, num_ranks: int) -> None:
    """Every rank calls it; group: the ranks' CPU process group, None for one rank. Raises CostTableError on
    every rank where one has another table, or none."""
    seen: list[Any] = [digest] * num_ranks
    if group is not None:
        torch.distributed.all_gather_object(seen, digest, group=group)
    check_rank_hashes(dict(enumerate(seen)))


def _make_speculation(
    worker: Any, table: CostTable | None, engine: MeasuredEngine, server_args: Any, group: Any, rank: int
) -> EngineSpeculation:
    shape = VerifyShape.RAGGED if engine.verify.startswith("compact") else VerifyShape.EQUAL
    decider = RankSpeculation(block=engine.block, shape=shape, table=table)
    publisher = None
    if server_args.enable_metrics and rank == 0:  # all ranks count the same
        from sgl_ext.speculation.publish_metrics import MetricsPublisher

        publisher = MetricsPublisher(decider)
    return EngineSpeculation(decider, device=torch.device(worker.device), group=group, publisher=publisher)


def _batches(server_args: Any) -> tuple[tuple[int, ...], int]:
    from sglang.srt.runtime_context import get_exec, get_schedule

    max_batch = int(get_schedule().max_running_requests or 1)
    captured = get_exec().graph.cuda_graph_config.decode.bs or ()
    doubling = (1 << power for power in range(max_batch.bit_length()))
    batches = sorted({int(size) for size in captured or doubling if size <= max_batch} | {max_batch})
    return tuple(batches), max_batch
