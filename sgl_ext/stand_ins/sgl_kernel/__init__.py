"""Stand-in for sgl_kernel, which has no CPU build."""

from sgl_ext.stand_ins import missing_name, refusing

# The names SGLang 0.5.23 binds on CPU while it is imported: speculative decoding, which the CPU engine
# does not do, and the activations of GPU expert kernels.
BOUND_AT_IMPORT = frozenset(
    {
        "assign_draft_cache_locs_contiguous_cpu",
        "assign_extend_cache_locs_cpu",
        "assign_req_to_token_pool_cpu",
        "build_tree_kernel_efficient_cpu",
        "copy_all_layer_kv_cache_cpu",
        "fill_accept_out_cache_loc_cpu",
        "fill_bonus_tokens_cpu",
        "gelu_and_mul",
        "rotate_input_ids_cpu",
        "silu_and_mul",
        "verify_tree_greedy_cpu",
    }
)


def __getattr__(name: str) -> object:
    if name in BOUND_AT_IMPORT:
        return refusing(f"sgl_kernel.{name}")
    raise missing_name(__name__, name)
