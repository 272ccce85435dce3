"""Settings that are known to corrupt output, hang, or end a Spark: refused with the reason, never ignored."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from launcher.config_problem import ConfigProblem

if TYPE_CHECKING:
    from launcher.recipe import Recipe

_ANY = r".*"
_ON = r"(?i)(1|true|yes|on)"
_FIELD = "https://github.com/MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forbidden:
    """`bad`: pattern of the whole value. `source`: where it was seen."""

    name: str
    bad: str
    reason: str
    hint: str
    source: str

    def matches(self, value: str) -> bool:
        return re.fullmatch(self.bad, value.strip(), re.DOTALL) is not None


# For every machine: none of them is right on any of ours.
VARIABLES = (
    *(
        Forbidden(
            name=name,
            bad=r"(?i).*expandable_segments\s*:\s*true.*",
            reason="on a GB10 expandable_segments gives NaN logits for prefills above 64 tokens and for "
            "batches of 3 and more",
            hint="write expandable_segments:False, or remove it",
            source="https://github.com/tonyd2wild/DeepSeek-V4.1-Flash-vLLM-DGX-Spark/issues/2",
        )
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    ),
    Forbidden(
        name="SGLANG_RUST_BUILD_MODE",
        bad=r"(?!never$).*",
        reason="any mode but never may call cargo, which hung a head node",
        hint="remove it: sparkctl sets never",
        source=f"{_FIELD} (.env.tp8.example)",
    ),
    Forbidden(
        name="LD_LIBRARY_PATH",
        bad=_ANY,
        reason="it can load a second NCCL beside the one of the engine's environment",
        hint="install the NCCL that is wanted into the engine's environment",
        source=f"{_FIELD} (docs/switchless-ring.md)",
    ),
    *(
        Forbidden(
            name=name,
            bad=r"(?!0$).*",
            reason="the first collective of 4 bytes then never ends on these ports",
            hint="remove it; look into /etc/nccl.conf on the nodes too",
            source="https://github.com/masquerator-coder/DeepSeek-v4.1-Flash-DGX-Sparks-TP3 (README 2)",
        )
        for name in ("NCCL_IB_USE_INLINE", "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS")
    ),
    Forbidden(
        name="SGLANG_DSV4_FP4_DEQUANT",
        bad=_ON,
        reason="it turns MXFP4 experts into FP8, twice their bytes, which no Spark holds",
        hint="remove it",
        source="SGLang 0.5.23, srt/layers/quantization/fp8.py",
    ),
    *(
        Forbidden(
            name=name,
            bad=_ON,
            reason="the folded verify graph reads accepted lengths before they are copied",
            hint="remove it: off is the default",
            source="https://github.com/sgl-project/sglang/pull/40919",
        )
        for name in ("SGLANG_OPT_DSV41_POST_FORWARD_CUDA_GRAPH", "SGLANG_OPT_DSV41_SAMPLING_ACCEPT_GRAPH")
    ),
    Forbidden(
        name="SGLANG_OPT_SM120_DIRECT_SWA_KV",
        bad=_ON,
        reason="it keeps window pages of 64 tokens, and stores still write pages of 256 into them",
        hint="remove it",
        source="SGLang 0.5.23, srt/mem_cache/deepseek_v4_memory_pool.py:1103, 2189, 2226",
    ),
    *(
        Forbidden(
            name=name,
            bad=r"(?i)(?!auto$).*",
            reason="SGLang refuses these layouts on sm_12x, and the plugin gives the pools what it checked",
            hint="set extensions.kv_layout, which is checked at boot",
            source="SGLang 0.5.23, srt/mem_cache/deepseek_v4_memory_pool.py:198",
        )
        for name in ("SGLANG_DSV4_KV_LAYOUT", "SGLANG_DSV4_COMPRESSED_KV_LAYOUT")
    ),
    Forbidden(
        name="SGLANG_OPT_FP8_WO_A_GEMM",
        bad=_ON,
        reason="it takes blocks of 128 x 128 only and is left out for DeepSeek-V4.1's 32 x 32",
        hint="remove it",
        source="SGLang 0.5.23, srt/models/deepseek_v4.py:280",
    ),
    Forbidden(
        name="SGLANG_OPT_USE_TOPK_V2",
        bad=_ON,
        reason="SGLang switches it off on sm_12x whatever it is set to",
        hint="remove it",
        source="SGLang 0.5.23, srt/arg_groups/model_hook.py:488",
    ),
)

# For recipes on Sparks only: the CPU engine may use them.
SPARK_OPTIONS = (
    Forbidden(
        name="weight-loader-disable-mmap",
        bad="True",
        reason="whole shards, up to 101 GB each with Engram rows, are read into memory: a head ran out of it",
        hint="remove it",
        source="https://github.com/cqingwang/DeepSeek-v4.1-Flash-DGX-Sparks (docs/fast-load.md)",
    ),
    Forbidden(
        name="weight-loader-prefetch-checkpoints",
        bad="True",
        reason="it fills the page cache with the checkpoint, and page cache is GPU memory on a Spark",
        hint="remove it",
        source="SGLang 0.5.23, srt/model_loader/weight_utils.py",
    ),
    Forbidden(
        name="enable-paged-experts",
        bad="True",
        reason="it pins host memory, which is the GPU's own on a Spark",
        hint="remove it",
        source="SGLang 0.5.23, srt/model_loader/expert_pack_runtime.py",
    ),
    Forbidden(
        name="enable-layernorm-sp",
        bad="True",
        reason="SGLang refuses it for DeepSeek-V4 minutes into the start",
        hint="set parallelism.sequence_parallel: prefill",
        source="SGLang 0.5.23, srt/arg_groups/layernorm_sp_hook.py",
    ),
    Forbidden(
        name="enable-two-batch-overlap",
        bad="True",
        reason="SGLang refuses it for DeepSeek-V4.1",
        hint="remove it",
        source="SGLang 0.5.23, srt/arg_groups/deepseek_v4_hook.py",
    ),
)
SPARK_BACKENDS = (
    Forbidden(
        name="attention_backend",
        bad="fa3",
        reason="the aarch64 wheel has no FlashAttention 3",
        hint="set server.attention_backend: dsv4",
        source="sglang-kernel 0.4.10 for aarch64",
    ),
    Forbidden(
        name="moe_runner_backend",
        bad="deep_gemm",
        reason="its MXFP4 kernels are not built for sm_121: CUDA_ERROR_INVALID_IMAGE",
        hint="set extensions.experts.backend: auto",
        source="https://github.com/timothystewart6/vllm-gb10/issues/26",
    ),
)


def forbidden_variable(name: str, value: str) -> ConfigProblem | None:
    """The problem of one environment variable; None when nothing is known against it."""
    return _problem(VARIABLES, ("environment", name), name, name, value)


def forbidden_options(recipe: Recipe) -> Iterator[ConfigProblem]:
    """Options and backends of a recipe for Sparks."""
    if recipe.engine.runtime == "cpu":
        return
    for name, value in recipe.server.flags.items():
        found = _problem(SPARK_OPTIONS, ("server", "flags", name), name, f"server.flags.{name}", str(value))
        if found is not None:
            yield found
    for item in SPARK_BACKENDS:
        value = getattr(recipe.server, item.name)
        found = _problem((item,), ("server", item.name), item.name, f"server.{item.name}", str(value))
        if found is not None:
            yield found


def _problem(
    known: tuple[Forbidden, ...], at: tuple[str, ...], name: str, shown: str, value: str
) -> ConfigProblem | None:
    for item in known:
        if item.name == name and item.matches(value):
            message = f"{shown} must not be {value!r}: {item.reason} ({item.source})"
            return ConfigProblem(at=at, message=message, hint=item.hint)
    return None
