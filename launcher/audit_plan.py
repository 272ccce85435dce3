"""Pure: what a plan intends against what its ranks and its head say is in effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from launcher.plan import LaunchPlan, NodePlan
from launcher.rank_report import NodeReports, RankReport

PLUGIN = "sgl_ext"
ENGINE = "sglang.launch_server"
ENGRAM_DIR = "SPARKCTL_ENGRAM_DIR"
# Options that decide how the ranks share the model, what it is and how it drafts; the default holds where a
# plan leaves one out. Every other option counts where the plan has it.
OPTIONS: Mapping[str, tuple[str, str | None]] = {
    "tp-size": ("tp_size", "1"),
    "ep-size": ("ep_size", "1"),
    "pp-size": ("pp_size", "1"),
    "nnodes": ("nnodes", "1"),
    "node-rank": ("node_rank", "0"),
    "dist-init-addr": ("dist_init_addr", None),
    "model-path": ("model_path", None),
    "context-length": ("context_length", None),
    "speculative-algorithm": ("speculative_algorithm", None),
}
SERVER_INFO = {"tp-size": "tp_size", "ep-size": "ep_size", "nnodes": "nnodes"}
# What SGLang decides on each rank by itself, and must decide alike: else ranks compute different things. (A
# random seed is drawn on each node and made one later.)
DECIDED_ALIKE = (
    "attention_backend",
    "cuda_graph_backend_decode",
    "dtype",
    "enable_decoder_swa_bounded_replay",
    "fp8_gemm_runner_backend",
    "grammar_backend",
    "kv_cache_dtype",
    "moe_runner_backend",
    "page_size",
    "sampling_backend",
    "speculative_moe_runner_backend",
)
OPEN = "auto"  # a value that leaves the choice to SGLang
# Of the plan's environment: what the engine, its collectives and the plugin read.
SECRET = "(secret)"  # what a report says in place of a value that must not be seen
PREFIXES = ("SPARKCTL_", "SGLANG_", "NCCL_", "GLOO_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """`rank` is None for what concerns the whole node; `next_step`: a command, or what to change first."""

    node: str
    rank: int | None
    item: str
    intended: str
    seen: str
    next_step: str

    def __str__(self) -> str:
        where = self.node if self.rank is None else f"{self.node} rank {self.rank}"
        return f"{where}: {self.item} must be {self.intended}, got {self.seen}"


def expects_reports(plan: LaunchPlan) -> bool:
    """A container's engine may lack the plugin, and SGLANG_PLUGINS may leave it out; rows from packed files
    are impossible without it. A router has no ranks."""
    environment = plan.head.environment
    if plan.is_router:
        return False
    if ENGRAM_DIR in environment:
        return True
    chosen = environment.get("SGLANG_PLUGINS", "")
    left_out = bool(chosen) and PLUGIN not in [name.strip() for name in chosen.split(",")]
    return plan.runtime != "docker" and not left_out


def audit_reports(plan: LaunchPlan, nodes: Mapping[str, NodeReports]) -> tuple[Difference, ...]:
    """Every difference of every rank, in rank order. `nodes` has an entry for each node of the plan."""
    found: list[Difference] = []
    first: RankReport | None = None
    for node in plan.nodes:
        own = nodes[node.name]
        found += [
            _difference(plan, node, None, name, "a rank's report", f"one that {why}")
            for name, why in own.problems.items()
        ]
        for rank in node.ranks:
            report = own.by_rank.get(rank)
            if report is None:
                name = f"reports/rank-{rank:02d}.json"
                found.append(
                    _difference(plan, node, rank, name, "written after the hooks were proved", "none")
                )
                continue
            first = first or report
            found += _audit_rank(plan, node, report)
            found += _like_first(plan, node, report, first)
    return tuple(found)


def _audit_rank(plan: LaunchPlan, node: NodePlan, report: RankReport) -> Iterator[Difference]:
    seen_version = report.versions.get("sglang")
    if seen_version != plan.sglang_version:
        yield _difference(plan, node, report.rank, "sglang", plan.sglang_version, str(seen_version))
    yield from _options(plan, node, report)
    yield from _hooks(plan, node, report)
    for name, intended in node.environment.items():
        if name.startswith(PREFIXES):
            value = report.details.environment.get(name)
            if value not in (intended, SECRET):
                seen = "unset" if value is None else repr(value)
                yield _difference(plan, node, report.rank, name, repr(intended), seen)


def _options(plan: LaunchPlan, node: NodePlan, report: RankReport) -> Iterator[Difference]:
    """What SGLang runs with, not what it was given: where it decides otherwise, it says so in its report."""
    wanted = {option: default for option, (_, default) in OPTIONS.items() if default is not None}
    wanted |= plan_options(node.argv)
    for option, intended in wanted.items():
        name = OPTIONS[option][0] if option in OPTIONS else option.replace("-", "_")
        known = name in report.server_args or name in report.resolved
        if intended == OPEN or not (known or option in OPTIONS):
            continue
        seen = report.effective(name)
        if _means(intended, seen) or seen == SECRET:
            continue
        given = report.server_args.get(name)
        if name in report.resolved and _means(intended, given):
            hint = (
                f"set {option} to {seen} in the recipe, or read why SGLang did: "
                f"sparkctl logs --lines 0 --run {plan.run_id} --node {node.name}"
            )
            told = f"{seen}, as SGLang decided against its argument"
            yield _difference(plan, node, report.rank, f"--{option}", intended, told, hint)
        else:
            yield _difference(plan, node, report.rank, f"--{option}", intended, str(seen))


def _means(word: str, value: object) -> bool:
    """Whether a word of a command line says this value: 0.80 is 0.8, a switch is True."""
    if isinstance(value, bool):
        return word == str(value).lower()
    if isinstance(value, int | float):
        try:
            return float(word) == value
        except ValueError:
            return False
    return word == str(value)


def _hooks(plan: LaunchPlan, node: NodePlan, report: RankReport) -> Iterator[Difference]:
    for hook in report.hooks:
        if not hook.in_effect:
            yield _difference(
                plan, node, report.rank, f"the hook on {hook.target}", "in effect", "not in effect"
            )
    if report.hook_sets and not report.hooks:
        yield _difference(plan, node, report.rank, "hooks", f"those of {', '.join(report.hook_sets)}", "none")
    intended = node.environment.get(ENGRAM_DIR)
    if (intended is not None) != ("row_store" in report.hook_sets):
        what = "with" if intended is not None else "without"
        sets = ", ".join(report.hook_sets) or "none"
        yield _difference(
            plan, node, report.rank, "hook sets", f"{what} row_store (Engram rows from disk)", sets
        )
    if report.settings.engram_dir != intended:
        seen = str(report.settings.engram_dir)
        yield _difference(plan, node, report.rank, "the folder of Engram rows", str(intended), seen)


def _like_first(
    plan: LaunchPlan, node: NodePlan, report: RankReport, first: RankReport
) -> Iterator[Difference]:
    """Ranks that run different code give different answers, or hang."""
    like = f"as on rank {first.rank}"
    if report.hook_sets != first.hook_sets:
        intended = f"{', '.join(first.hook_sets) or 'none'}, {like}"
        yield _difference(
            plan, node, report.rank, "hook sets", intended, ", ".join(report.hook_sets) or "none"
        )
    elif (mine := _fingerprints(report)) != (others := _fingerprints(first)):
        targets = ", ".join(sorted({item[0] for item in mine ^ others}))
        yield _difference(plan, node, report.rank, "hooks", f"the same {like}", f"others on {targets}")
    for name in DECIDED_ALIKE:
        if report.effective(name) != first.effective(name):
            intended = f"{first.effective(name)}, {like}"
            yield _difference(plan, node, report.rank, name, intended, str(report.effective(name)))
    table, others_table = _table_hash(report), _table_hash(first)
    if table != others_table:
        yield _difference(plan, node, report.rank, "the cost table", f"{others_table}, {like}", table)
    for name in ("sparkctl", "torch"):
        if report.versions.get(name) != first.versions.get(name):
            intended = f"{first.versions.get(name)}, {like}"
            yield _difference(plan, node, report.rank, name, intended, str(report.versions.get(name)))


def _table_hash(report: RankReport) -> str:
    return "none" if report.details.speculation is None else report.details.speculation.table_hash


def _fingerprints(report: RankReport) -> set[tuple[str, str, str]]:
    return {(hook.target, hook.kind, hook.fingerprint) for hook in report.hooks}


def audit_server_info(plan: LaunchPlan, info: Mapping[str, object]) -> tuple[Difference, ...]:
    """The head's own words (`/server_info`) against the plan; {"failed": why} is one difference."""
    head = plan.head
    if "failed" in info:
        return (_difference(plan, head, None, "/server_info", "answered", str(info["failed"])),)
    words = plan_options(head.argv)
    wanted = {name: words.get(option, OPTIONS[option][1]) for option, name in SERVER_INFO.items()}
    wanted |= {"version": plan.sglang_version, "served_model_name": plan.api.served_name}
    return tuple(
        _difference(plan, head, None, f"/server_info {name}", str(intended), str(info.get(name)))
        for name, intended in wanted.items()
        if str(info.get(name)) != intended
    )


def plan_options(argv: tuple[str, ...]) -> dict[str, str]:
    """Option -> the word that follows it, or "true" where none does, of an engine's command line."""
    start = argv.index(ENGINE) + 1 if ENGINE in argv else 0  # a container's own options stand before it
    return {
        word[2:]: "true" if value.startswith("--") else value
        for word, value in pairwise((*argv[start:], "--"))
        if word.startswith("--")
    }


def _difference(
    plan: LaunchPlan,
    node: NodePlan,
    rank: int | None,
    item: str,
    intended: str,
    seen: str,
    next_step: str = "",
) -> Difference:
    return Difference(
        node=node.name,
        rank=rank,
        item=item,
        intended=intended,
        seen=seen,
        next_step=next_step or f"sparkctl logs --run {plan.run_id} --node {node.name}",
    )
