"""Write a V4.1-shaped checkpoint folder in the official format, with seeded weights.

Files: config.json, tokenizer, one shard for the model, one for the draft stages, one per Engram layer, and
the index, which is written last: a folder with an index is whole. A build that was cut off goes on where it
stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from engram.token_map import build_token_map
from sgl_ext.errors import SettingError
from sgl_ext.tiny_model.draw_values import draw_tensor, num_bytes
from sgl_ext.tiny_model.v41_config import count_engram_rows, make_config
from sgl_ext.tiny_model.v41_sizes import V41Size
from sgl_ext.tiny_model.v41_tensors import TensorSpec, list_engram_tables, list_tensors
from sgl_ext.tiny_model.v41_tokenizer import BEGIN, END, IMAGE, PAD, build_tokenizer
from sgl_ext.tiny_model.write_safetensors import shard_header, write_shard
from sgl_ext.write_atomically import write_atomically

INDEX_NAME = "model.safetensors.index.json"
RECIPE_NAME = "tiny_model.json"
_CHAT_TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant: "


def build_v41(
    out: Path, size: V41Size, *, seed: int, report: Callable[[str], None] = lambda line: None
) -> bool:
    """Builds the folder; report() gets one line a shard. False: it was whole already.

    Raises SettingError where out holds another model.
    """
    out.mkdir(parents=True, exist_ok=True)
    _claim(out, {"kind": "v41", "seed": seed, "size": _recorded(size)})
    _write_small_files(out, size)
    shards = plan_shards(size)
    was_whole = (out / INDEX_NAME).is_file()
    for name, specs in shards.items():
        path = out / name
        whole = len(shard_header(specs)) + sum(map(num_bytes, specs))
        if path.is_file() and path.stat().st_size == whole:
            report(f"{name}: kept ({whole} bytes)")
            continue
        was_whole = False
        write_shard(path, specs, lambda spec: draw_tensor(spec, seed=seed))
        report(f"{name}: {whole} bytes, {len(specs)} tensors")
    weight_map = {spec.name: name for name, specs in shards.items() for spec in specs}
    total = sum(num_bytes(spec) for specs in shards.values() for spec in specs)
    _write_json(out / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return not was_whole


def plan_shards(size: V41Size) -> dict[str, list[TensorSpec]]:
    """Shard file name -> its tensors; Engram tables come last, each in its own file, as published."""
    dense = list(list_tensors(size))
    parts = [
        [spec for spec in dense if not spec.name.startswith("mtp.")],
        [spec for spec in dense if spec.name.startswith("mtp.")],
        *(
            list(list_engram_tables(layer, num_rows, size))
            for layer, num_rows in zip(size.engram_layer_ids, count_engram_rows(size), strict=True)
        ),
    ]
    return {
        f"model-{idx:05d}-of-{len(parts):05d}.safetensors": specs for idx, specs in enumerate(parts, start=1)
    }


def _recorded(size: V41Size) -> dict[str, object]:
    """Without a vision tower as before there was one, so that earlier folders are still kept."""
    fields: dict[str, object] = json.loads(json.dumps(asdict(size)))
    if size.vision is None:
        del fields["vision"]
    return fields


def _claim(out: Path, recipe: dict[str, object]) -> None:
    """Marks the folder with its recipe; refuses a folder that holds anything else."""
    path = out / RECIPE_NAME
    if path.is_file():
        if json.loads(path.read_text()) != recipe:
            raise SettingError(
                f"{out} must be empty or hold the same tiny model, got one of another size or seed ({path}).",
                hint=f"choose another folder, or rm -r {out}",
            )
        return
    other = next(
        (entry.name for entry in out.iterdir() if not entry.name.startswith(f".{RECIPE_NAME}")), None
    )
    if other is not None:
        raise SettingError(
            f"{out} must be empty or hold the same tiny model, got {other!r} in it.",
            hint="choose another folder",
        )
    _write_json(path, recipe)


def _write_small_files(out: Path, size: V41Size) -> None:
    tokenizer = build_tokenizer(size.vocab_size)
    write_atomically(out / "tokenizer.json", tokenizer.to_str().encode())
    _write_json(
        out / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "pad_token": PAD,
            "add_bos_token": False,
            "clean_up_tokenization_spaces": False,
            "model_max_length": size.original_positions * size.rope_factor,
            "chat_template": _CHAT_TEMPLATE,
        },
    )
    image_token_id = tokenizer.token_to_id(IMAGE)
    assert image_token_id is not None
    num_classes = build_token_map(tokenizer).num_classes
    config = make_config(size, num_classes=num_classes, image_token_id=image_token_id)
    _write_json(out / "config.json", config)
    _write_json(
        out / "generation_config.json",
        {"bos_token_id": 0, "eos_token_id": 1, "do_sample": True, "temperature": 1.0, "top_p": 0.95},
    )


def _write_json(path: Path, content: object) -> None:
    write_atomically(path, json.dumps(content, indent=1).encode() + b"\n")
