"""ModelConfig._derive_model_shapes: the model is built with padded heads and groups."""

from __future__ import annotations

from typing import Any

from sgl_ext.balanced_heads import pad_config
from sgl_ext.hook import Hook, HookKind


def pad_before_shapes(model_config: Any) -> None:
    from sglang.srt.runtime_context import get_parallel

    for config in {id(c): c for c in (model_config.hf_config, model_config.hf_text_config)}.values():
        pad_config(config, get_parallel().tp_size)


def find_unpadded_layer(scheduler: Any) -> str | None:
    """Every attention layer of the built model must have the padded number of heads."""
    from sglang.srt.models.deepseek_v4 import MqaAttentionBase

    model = scheduler.tp_worker.model_runner.model
    wanted = model.config.num_attention_heads
    if wanted == model.config.unpadded_num_attention_heads:
        return f"{wanted} heads, as in the checkpoint"
    for layer in model.modules():
        if isinstance(layer, MqaAttentionBase) and layer.n_heads != wanted:
            return f"an attention layer with {layer.n_heads} heads instead of {wanted}"
    return None


HOOK = Hook(
    target="sglang.srt.configs.model_config.ModelConfig._derive_model_shapes",
    kind=HookKind.BEFORE,
    replacement=pad_before_shapes,
    reason="SGLang floors heads by ranks and then asserts; V4.1's 8 groups do not divide by 3",
    sglang_versions=("0.5.23",),
    fingerprint="e1d66b38d10038d7",
    remove_when="SGLang pads attention heads on every device",
    check_effect=find_unpadded_layer,
)
