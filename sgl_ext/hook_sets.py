"""Which hooks a rank needs, decided from the settings and the model's config.json. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from sgl_ext.errors import SettingError
from sgl_ext.settings import ENGRAM_DIR_VARIABLE, SPEC_VARIABLE, Settings

V41_MODEL_TYPES = ("deepseek_v41", "deepseek_v41_text")


class HookSet(enum.StrEnum):
    """A group of hooks that only makes sense together; the rank report names the groups in effect."""

    CPU_V41 = "cpu_v41"  # plain PyTorch where V4.1 has GPU kernels only
    BALANCED_HEADS = "balanced_heads"  # attention heads padded to a multiple of the ranks
    EXPERTS = "experts"  # the MXFP4 expert backend is checked and chosen at boot
    GPU_EXPERTS = "gpu_experts"  # the chosen backend in SGLang's quantised layers
    SM12X = "sm12x"  # what stands between the stock wheel and a GB10
    SEQUENCE_PARALLEL = "sequence_parallel"  # prefill rows split over the ranks between sublayers
    GPU_SEQUENCE_PARALLEL = "gpu_sequence_parallel"  # the same in CUDA's layers
    ROW_STORE = "row_store"  # Engram rows from packed files instead of tables in memory
    SPECULATION = "speculation"  # DSpark's width decided for every step and request
    SPEC_PLAIN_GRAPHS = "spec_plain_graphs"  # graphs for its steps without a draft


HOOK_MODULES: dict[HookSet, tuple[str, ...]] = {
    HookSet.CPU_V41: (
        "quant_config",
        "load_weights",
        "draft_load_weights",
        "rope_wrapper",
        "unaligned_tp",
        "kv_configure",
        "flashmla_metadata",
        "sparse_prefill_choice",
        "kernel_num_heads",
        "attention_forward",
        "rope_inplace",
        "k_norm_rope_store",
        "store_cache",
        "store_index_key",
        "index_logits_decode",
        "hc_split_sinkhorn",
        "mhc_combine",
        "silu_and_mul_clamp",
        "moe_gate",
        "compressor_finish",
        "indexer_scores",
        "engram_embed_rows",
        "native_experts",
        "last_token_slot",
        "write_token_slots",
        "verify_slots",
        "move_lengths",
        "draft_without_streams",
        "ragged_slots",
        "chain_sampling",
    ),
    HookSet.BALANCED_HEADS: ("padded_config", "padded_weights", "padded_draft_weights"),
    HookSet.EXPERTS: ("expert_choice",),
    HookSet.GPU_EXPERTS: ("expert_method", "expert_row_order"),
    HookSet.SM12X: (
        "sm100_indexer",
        "kernel_heads_sm12x",
        "score_chunks",
        "kv_layout_choice",
        "kv_layout_attention",
        "live_publish_decode",
        "live_consume_decode",
        "live_topk_decode",
        "wo_a_matmul",
        "wo_a_weights",
    ),
    HookSet.SEQUENCE_PARALLEL: ("sequence_parallel_layer",),
    HookSet.GPU_SEQUENCE_PARALLEL: ("sequence_parallel_cuda",),
    HookSet.ROW_STORE: (
        "engram_embedding",
        "engram_stager",
        "engram_hasher",
        "engram_verify_graph",
        "engram_verify_eager",
        "engram_admission",
        "engram_output_gate",
    ),
    HookSet.SPECULATION: (
        "engram_ragged_hash",
        "ragged_requests",
        "spec_step",
        "spec_propose",
        "spec_layout",
        "spec_padding",
        "spec_window",
        "spec_window_cpu",
        "spec_budget",
        "spec_budget_sync",
        "spec_accept",
        "spec_graph_lens",
        "spec_graph_accept",
        "spec_result",
        "spec_finish",
        "spec_option",
    ),
    HookSet.SPEC_PLAIN_GRAPHS: ("spec_plain_tiers", "spec_plain_capture"),
}


def choose_hook_sets(
    settings: Settings,
    config: Mapping[str, Any] | None,
    tp_size: int,
    speculative: str | None = None,
    capability: tuple[int, int] | None = None,
) -> tuple[HookSet, ...]:
    """Hook sets for one rank. config is the model's config.json; None means the model is no local folder;
    speculative: SGLang's --speculative-algorithm; capability: CUDA's, None without a GPU.

    Raises SettingError where a setting asks for something the model cannot have.
    """
    is_v41 = config is not None and config.get("model_type") in V41_MODEL_TYPES
    if settings.engram_dir is not None and not is_v41:
        seen = "no local config.json" if config is None else f"model_type {config.get('model_type')!r}"
        raise SettingError(
            f"The model must be a local DeepSeek-V4.1 folder when {ENGRAM_DIR_VARIABLE} is set, got {seen}.",
            hint=f"unset {ENGRAM_DIR_VARIABLE} or serve the model those Engram files were packed from",
        )
    if settings.spec and not (is_v41 and speculative == "DSPARK"):
        raise SettingError(
            f"The engine must serve DeepSeek-V4.1 with --speculative-algorithm DSPARK when {SPEC_VARIABLE} "
            f"is set, got {speculative or 'no speculation'}{'' if is_v41 else ' and another model'}.",
            hint=f"unset {SPEC_VARIABLE}, or set extensions.dspark.enabled in the recipe",
        )
    if settings.sequence_parallel and not is_v41:
        raise SettingError(
            "The model must be DeepSeek-V4.1 in a local folder when prefill rows are split, got another.",
            hint="set parallelism.sequence_parallel: off, or unset SPARKCTL_SEQUENCE_PARALLEL",
        )
    if not is_v41:
        return ()
    assert config is not None
    chosen = []
    if settings.cpu_engine:
        chosen.append(HookSet.CPU_V41)
    chosen.append(HookSet.EXPERTS)
    if not settings.cpu_engine:
        chosen.append(HookSet.GPU_EXPERTS)
    if capability is not None and capability[0] == 12:
        chosen.append(HookSet.SM12X)
    groups = config.get("text_config", config)["o_groups"]
    if groups % tp_size != 0:
        chosen.append(HookSet.BALANCED_HEADS)
    if settings.sequence_parallel:
        chosen.append(HookSet.SEQUENCE_PARALLEL if settings.cpu_engine else HookSet.GPU_SEQUENCE_PARALLEL)
    if settings.spec:
        chosen.append(HookSet.SPECULATION)
        if settings.spec_plain_graphs:
            chosen.append(HookSet.SPEC_PLAIN_GRAPHS)
    # Last, so that its hook on EngramHasher.forward is the outermost: that of ragged blocks passes none on.
    if settings.engram_dir is not None:
        chosen.append(HookSet.ROW_STORE)
    return tuple(chosen)
