"""A plugin for benchmarks only: makes stock SGLang 0.5.23 with Marlin experts repeat its own greedy replies.

SGLang's moe_align kernel gives an expert's tokens to blocks of rows in the order in which atomic additions
arrive, from 1,024 (token, expert) pairs on; fewer take another, ordered kernel. Marlin cuts the K dimension
differently for each block, so a token's sum is rounded differently where it lands in another block. With 6
experts a token, prompts from 171 tokens on are therefore not repeatable. Here the pairs of each expert are
put into ascending order afterwards. Both sides of a comparison load this, so neither gains.

GPU_REPEATABLE names what is in effect, comma-separated:
  experts  the order of an expert's tokens
  hashes   a hash of every module's output of large prefills, to GPU_REPEATABLE_LOG, to find what differs
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

NAME = "gpu_repeatable"
_HASHED_FROM_TOKENS = 171


def write_plugin(folder: Path) -> Path:
    """A folder for PYTHONPATH that holds the entry point of this file."""
    info = folder / f"{NAME}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{NAME} = {NAME}:register\n")
    (folder / f"{NAME}.py").write_text(Path(__file__).read_text())
    return folder


def register() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    wanted = os.environ.get("GPU_REPEATABLE", "experts").split(",")
    if "experts" in wanted:
        target = "sglang.kernels.ops.moe.moe_align.moe_align_block_size"
        HookRegistry.register(target, align_in_order, HookType.AROUND)
    if "hashes" in wanted:
        target = "sglang.srt.model_executor.model_runner.ModelRunner.load_model"
        HookRegistry.register(target, hash_outputs, HookType.AROUND)


def align_in_order(
    original: Callable[..., None],
    topk_ids: Any,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Any,
    expert_ids: Any,
    num_tokens_post_pad: Any,
    *arguments: Any,
    **options: Any,
) -> None:
    original(
        topk_ids,
        num_experts,
        block_size,
        sorted_token_ids,
        expert_ids,
        num_tokens_post_pad,
        *arguments,
        **options,
    )
    if topk_ids.numel() < 1024 and num_experts <= 64:
        return  # the ordered kernel
    global _said
    if not _said:
        print("gpu_repeatable: tokens of an expert in ascending order", file=sys.stderr, flush=True)
        _said = True
    order_pairs(sorted_token_ids, expert_ids, num_tokens_post_pad, block_size, topk_ids.numel())


_said = False


def order_pairs(pairs: Any, expert_ids: Any, total: Any, block_size: int, num_pairs: int) -> None:
    """Sorts, in place, each expert's pairs; padding (num_pairs) stays behind them."""
    import torch

    places = torch.arange(pairs.numel(), device=pairs.device)
    experts = expert_ids[places // block_size].to(torch.int64)
    experts = torch.where(places < total[0], experts, 1 << 20)  # past the end they are not initialised
    keys = (experts + 1) * (num_pairs + 1) + pairs
    pairs.copy_((keys.sort().values % (num_pairs + 1)).to(pairs.dtype))


def hash_outputs(original: Callable[..., Any], runner: Any, *arguments: Any, **options: Any) -> Any:
    import torch

    result = original(runner, *arguments, **options)
    path = Path(f"{os.environ['GPU_REPEATABLE_LOG']}.{os.getpid()}")
    log = path.open("a", buffering=1)

    def write(name: str) -> Callable[..., None]:
        def hook(module: Any, inputs: Any, output: Any) -> None:
            if torch.cuda.is_current_stream_capturing():
                return
            values = output if isinstance(output, (tuple, list)) else [output]
            for idx, value in enumerate(values):
                if isinstance(value, torch.Tensor) and value.dim() > 1 and value.is_floating_point():
                    if value.shape[0] < _HASHED_FROM_TOKENS:
                        continue
                    raw = value.contiguous().view(torch.uint8).to(torch.int64).reshape(-1)
                    weights = torch.arange(raw.numel(), device=raw.device) % 1_000_003 + 1
                    log.write(f"{name}[{idx}] {tuple(value.shape)} {int((raw * weights).sum())}\n")

        return hook

    for name, module in runner.model.named_modules():
        if name:
            module.register_forward_hook(write(name))
    return result


def find_first_difference(log: Path) -> str:
    """The log of one prompt asked twice, split in the middle: the first line that differs."""
    lines = log.read_text().splitlines()
    half = len(lines) // 2
    for one, other in zip(lines[:half], lines[half:], strict=False):
        if one != other:
            return f"{one} | {other}"
    return f"none of {half} lines"
