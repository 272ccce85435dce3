"""Which keys of the two formats mean the same."""

from __future__ import annotations

from launcher.flag_rules import TYPED_FLAGS

VERSION = "2"
# sparkrun's `defaults` -> key path of a recipe.
DEFAULTS: dict[str, tuple[str, str]] = {
    "port": ("server", "port"),
    "host": ("server", "host"),
    "tensor_parallel": ("parallelism", "tp"),
    "pipeline_parallel": ("parallelism", "pp"),
    "ep_size": ("parallelism", "ep"),
    "gpu_memory_utilization": ("server", "mem_fraction_static"),
    "max_model_len": ("server", "context_length"),
    "served_model_name": ("model", "served_name"),
} | {
    key: ("server", key)
    for key in TYPED_FLAGS
    if key not in ("mem_fraction_static", "context_length", "enable_metrics")
}
# SGLang's own options in a command -> the key of `defaults` that they repeat.
OPTIONS: dict[str, str] = {
    "port": "port", "host": "host", "tp": "tensor_parallel", "tp-size": "tensor_parallel",
    "tensor-parallel-size": "tensor_parallel", "pp-size": "pipeline_parallel",
    "pipeline-parallel-size": "pipeline_parallel", "ep": "ep_size", "ep-size": "ep_size",
    "expert-parallel-size": "ep_size", "served-model-name": "served_model_name",
    "mem-fraction-static": "gpu_memory_utilization", "context-length": "max_model_len",
} | {TYPED_FLAGS[key]: key for key in DEFAULTS if key in TYPED_FLAGS}  # fmt: skip
# Options that both launchers write themselves.
OWNED_OPTIONS = ("model-path", "model", "nnodes", "node-rank", "dist-init-addr", "revision")

REASONS: dict[str, str] = {
    "max_nodes": "a recipe is for one number of nodes: min_nodes was taken",
    "containers": "an image a host is data of nodes",
    "runtime_config": "its keys are the runtime's own",
    "benchmark": "sparkctl bench has suites of its own",
    "pre_exec": "commands on the machine are not run",
    "post_exec": "commands on the machine are not run",
    "post_commands": "commands on the machine are not run",
    "stop_after_post": "commands on the machine are not run",
    "runtime_cache": "sparkctl's caches are set in the topology",
}
TOP_KEYS = (
    "recipe_version", "model", "model_revision", "runtime", "runtime_version", "container", "min_nodes",
    "defaults", "env", "command", "metadata", "name", *REASONS,
)  # fmt: skip
