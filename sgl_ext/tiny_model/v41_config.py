"""config.json of a V4.1-shaped model, structured as the published one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from engram.primes import draw_column_primes
from sgl_ext.tiny_model.v41_sizes import V41Size, VisionSize


def count_engram_rows(size: V41Size) -> tuple[int, ...]:
    """Rows of each Engram layer's table: the sum of its column primes."""
    primes = draw_column_primes(
        num_layers=len(size.engram_layer_ids),
        num_orders=size.engram_max_ngram_size - 1,
        num_heads=size.engram_n_heads,
        vocab_size=size.engram_vocab_size,
    )
    return tuple(sum(layer) for layer in primes)


def make_config(size: V41Size, *, num_classes: int, image_token_id: int) -> dict[str, Any]:
    """num_classes: compressed vocabulary of the tokenizer (engram_compressed_vocab_size)."""
    vision = {} if size.vision is None else {"vision_config": _vision(size.vision)}
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "transformers_version": "5.6.0",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": image_token_id,
        "expert_dtype": "fp4",
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": {
            "model_type": "deepseek_v41_text",
            **_width_and_attention(size),
            **_experts(size),
            **_sparse_kv(size),
            **_engram_and_draft(size, num_classes),
        },
        **vision,
    }


def _width_and_attention(size: V41Size) -> dict[str, Any]:
    return {
        "vocab_size": size.vocab_size,
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.num_layers,
        "max_position_embeddings": size.original_positions * size.rope_factor,
        "num_attention_heads": size.num_attention_heads,
        "num_key_value_heads": 1,
        "head_dim": size.head_dim,
        "qk_rope_head_dim": size.qk_rope_head_dim,
        "q_lora_rank": size.q_lora_rank,
        "o_lora_rank": size.o_lora_rank,
        "o_groups": size.o_groups,
        "attention_bias": False,
        "sliding_window": 128,
        "rms_norm_eps": size.rms_norm_eps,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rope_theta": 10000,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": size.rope_factor,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": size.original_positions,
        },
        "compress_rope_theta": 160000,
        "hc_mult": size.hc_mult,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-6,
    }


def _experts(size: V41Size) -> dict[str, Any]:
    return {
        "n_routed_experts": size.n_routed_experts,
        "n_shared_experts": 1,
        "num_experts_per_tok": size.num_experts_per_tok,
        "moe_intermediate_size": size.moe_intermediate_size,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
    }


def _sparse_kv(size: V41Size) -> dict[str, Any]:
    return {
        "compress_ratios": list(size.compress_ratios),
        "kv_source_layer_ids": list(size.kv_source_layer_ids),
        "index_source_layer_ids": list(size.index_source_layer_ids),
        "index_n_heads": size.index_n_heads,
        "index_head_dim": size.index_head_dim,
        "index_topk": size.index_topk,
        "candidate_source_layer_id": size.candidate_source_layer_id,
        "candidate_topk_blocks": size.candidate_topk_blocks,
        "candidate_block_size": size.candidate_block_size,
    }


def _vision(size: VisionSize) -> dict[str, Any]:
    return {
        "model_type": "deepseek_v41_vision",
        **asdict(size),
        "rope_theta": 10000,
        "max_wh_ratio": None,
    }


def _engram_and_draft(size: V41Size, num_classes: int) -> dict[str, Any]:
    return {
        "engram_layer_ids": list(size.engram_layer_ids),
        "engram_num_embeddings": list(count_engram_rows(size)),
        "engram_max_ngram_size": size.engram_max_ngram_size,
        "engram_vocab_size": size.engram_vocab_size,
        "engram_n_heads": size.engram_n_heads,
        "engram_head_dim": size.engram_head_dim,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": num_classes,
        "num_nextn_predict_layers": size.num_stages,
        "dspark_block_size": size.dspark_block_size,
        "dspark_noise_token_id": size.vocab_size - 1,
        "dspark_target_layer_ids": list(size.dspark_target_layer_ids),
        "dspark_markov_rank": size.dspark_markov_rank,
        "dspark_n_routed_experts": size.dspark_n_routed_experts,
        "dspark_num_experts_per_tok": size.dspark_num_experts_per_tok,
    }
