"""Pure: bytes of the KV pool and the sliding-window pool, by the formulas of SGLang 0.5.23.

Sources in the wheel: srt/model_executor/pool_configurator.py (DSV4PoolConfigurator),
srt/mem_cache/deepseek_v4_memory_pool.py, kernels/ops/attention/dsv4/kv_layout.py. KV is replicated: every
rank of a tp group holds all of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from launcher.fit.model_config import ModelConfig

PAGE_TOKENS = 256
# V4 layout, SGLang's only one on sm_12x: FP8 latent, BF16 rope, 8 scale bytes; pages of whole 576 bytes.
_SCALE_BYTES, _PAGE_ALIGN_BYTES = 8, 576
# V4.1 layout (extensions.kv_layout: v41): FP8 in the window with one scale per 32 values, FP4 with one per 16
# in the compressed caches. Pages of 64 tokens and more need no padding.
_V41_WINDOW_BYTES, _FP4_SLOT_BYTES = 512 + 16, 256 + 32
_EVICTION_INTERVAL = 128  # SGLANG_SWA_EVICTION_INTERVAL
_TAILS_PER_REQUEST = 4
_PAIR_STATE_BYTES = 4  # float32


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """`verify_tokens`: draft tokens of a verify step with the bonus token; 0 without speculation."""

    max_running_requests: int
    chunk_tokens: int
    verify_tokens: int
    kv_layout: str = "v4"


def slot_bytes(config: ModelConfig, page_slots: int = 0, *, kv_layout: str = "v4") -> float:
    """One compressed slot (in the V4 layout also one of the window); with `page_slots` its share of the
    page's padding."""
    if kv_layout == "v41":
        return _FP4_SLOT_BYTES
    raw = config.head_dim - config.qk_rope_head_dim + 2 * config.qk_rope_head_dim + _SCALE_BYTES
    if not page_slots:
        return raw
    return -(-raw * page_slots // _PAGE_ALIGN_BYTES) * _PAGE_ALIGN_BYTES / page_slots


def window_slot_bytes(config: ModelConfig, kv_layout: str = "v4") -> float:
    """One slot of the sliding window, without padding."""
    return _V41_WINDOW_BYTES if kv_layout == "v41" else slot_bytes(config)


def index_bytes(config: ModelConfig) -> int:
    """FP4 index key and its scales."""
    return config.index_head_dim // 2 + config.index_head_dim // 32


def bytes_per_token(
    config: ModelConfig, *, has_draft: bool, padded: bool = True, kv_layout: str = "v4"
) -> float:
    """KV bytes of one token on every rank. `padded=False`: builds that did not count the pages' padding."""
    total = 0.0
    for ratio in (1, 2):
        page_slots = PAGE_TOKENS // ratio if padded else 0
        slot = slot_bytes(config, page_slots, kv_layout=kv_layout)
        total += config.kv_sources(ratio) * (slot + index_bytes(config)) / ratio
    return total * _draft_inflation(config, has_draft)


def compact_bytes_per_token(config: ModelConfig) -> float:
    """The publisher's FP4 layout, which SGLang itself does not use on sm_12x."""
    return bytes_per_token(config, has_draft=False, kv_layout="v41")


def swa_tokens(config: ModelConfig, settings: PoolSettings) -> int:
    """Slots of the sliding-window pool: what running requests, two chunks and prefix tails need."""
    verify = settings.verify_tokens or 1
    trailing = config.sliding_window + _EVICTION_INTERVAL * verify + PAGE_TOKENS
    decode = 2 * settings.verify_tokens if settings.verify_tokens else PAGE_TOKENS
    live = (trailing + decode) * settings.max_running_requests + 2 * settings.chunk_tokens + PAGE_TOKENS
    tails = _TAILS_PER_REQUEST * settings.max_running_requests * (config.sliding_window + PAGE_TOKENS)
    return _page_up(live + tails)


def swa_bytes(config: ModelConfig, settings: PoolSettings, *, padded: bool = True) -> int:
    is_v41 = settings.kv_layout == "v41"
    slot = _V41_WINDOW_BYTES if is_v41 else slot_bytes(config, PAGE_TOKENS if padded else 0)
    inflation = _draft_inflation(config, settings.verify_tokens > 0)
    return round(swa_tokens(config, settings) * slot * config.num_hidden_layers * inflation)


def pair_state_bytes(config: ModelConfig, settings: PoolSettings) -> int:
    """Pending pairs of the ratio-2 layers: a ring per request slot, float32."""
    ring = 1 << (settings.verify_tokens + 1).bit_length() if settings.verify_tokens else 2
    rows = (settings.max_running_requests + 1) * ring + ring + 1
    return (rows + rows % 2) * 2 * config.head_dim * _PAIR_STATE_BYTES * config.kv_sources(2)


def pool_tokens(
    config: ModelConfig, settings: PoolSettings, available_bytes: float, *, padded: bool = True
) -> int:
    """Tokens that the engine makes of the memory it finds, after the fixed pools: whole pages, or 0."""
    fixed = swa_bytes(config, settings, padded=padded) + pair_state_bytes(config, settings)
    per_token = bytes_per_token(
        config, has_draft=settings.verify_tokens > 0, padded=padded, kv_layout=settings.kv_layout
    )
    return max(0, page_down(int((available_bytes - fixed) / per_token)))


def page_down(tokens: int) -> int:
    """The engine serves whole pages only: 750,000 becomes 749,824."""
    return tokens // PAGE_TOKENS * PAGE_TOKENS


def _page_up(tokens: int) -> int:
    return -(-tokens // PAGE_TOKENS) * PAGE_TOKENS


def _draft_inflation(config: ModelConfig, has_draft: bool) -> float:
    """SGLang reserves the draft's KV as one more layer of the target's."""
    return (config.num_hidden_layers + 1) / config.num_hidden_layers if has_draft else 1.0
