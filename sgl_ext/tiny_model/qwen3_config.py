"""Shape and chat format of the tiny Qwen3, for the command that writes it and the script that fitted it."""

from __future__ import annotations

ENDOFTEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_TOKENS = (ENDOFTEXT, IM_START, IM_END)
VOCAB_SIZE = 1024

# 12 heads, 12 KV heads and 384 divide by 1, 2, 3 and 4, so one model serves every node count.
CONFIG: dict[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "sparkctl_tiny_model": "qwen3",  # lets a later version replace the directory
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 192,
    "intermediate_size": 384,
    "num_hidden_layers": 2,
    "num_attention_heads": 12,
    "num_key_value_heads": 12,
    "head_dim": 16,
    "hidden_act": "silu",
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "torch_dtype": "float32",
    "bos_token_id": SPECIAL_TOKENS.index(ENDOFTEXT),
    "eos_token_id": SPECIAL_TOKENS.index(IM_END),
}

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

TOKENIZER_CONFIG: dict[str, object] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": None,
    "eos_token": IM_END,
    "pad_token": ENDOFTEXT,
    "model_max_length": 4096,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}

GENERATION_CONFIG: dict[str, object] = {
    "bos_token_id": CONFIG["bos_token_id"],
    "eos_token_id": CONFIG["eos_token_id"],
    "pad_token_id": SPECIAL_TOKENS.index(ENDOFTEXT),
}
