"""The V4.1 builder: official names and types, readable files, the same bytes for a seed, resumable."""

import hashlib
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from engram.hash_layout import make_hash_layout
from engram.model_config import read_engram_config
from engram.token_map import load_token_map
from sgl_ext.errors import SettingError
from sgl_ext.tiny_model.draw_values import decode_e4m3, draw_tensor, encode_e4m3, num_bytes, round_to_bf16
from sgl_ext.tiny_model.v41 import build_v41, plan_shards
from sgl_ext.tiny_model.v41_sizes import CPU, H200, V41Size, VisionSize, resize
from sgl_ext.tiny_model.v41_tensors import Fill, TensorSpec, list_tensors

SMALL = replace(
    CPU,
    hidden_size=64,
    moe_intermediate_size=96,
    n_routed_experts=4,
    engram_vocab_size=101,
    engram_head_dim=32,
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("v41")
    build_v41(out, SMALL, seed=7)
    return out


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def test_same_seed_same_bytes_other_seed_other_weights(built: Path, tmp_path: Path) -> None:
    build_v41(tmp_path / "again", SMALL, seed=7)
    assert digests(tmp_path / "again") == digests(built)
    build_v41(tmp_path / "other", SMALL, seed=8)
    changed = {name for name, digest in digests(tmp_path / "other").items() if digest != digests(built)[name]}
    assert changed == {"tiny_model.json", *(path.name for path in built.glob("*.safetensors"))}


def test_bytes_are_the_same_on_every_machine() -> None:
    spec = TensorSpec(name="embed.weight", dtype="BF16", shape=(8, 16))
    digest = hashlib.sha256(b"".join(draw_tensor(spec, seed=1))).hexdigest()
    assert digest == "f209e2d2c5caad7777d42834118533eb4e6e7dedf9b3d66576e731512ec67db3"
    codes = TensorSpec(name="layers.0.attn.wkv.weight", dtype="F8_E4M3", shape=(8, 16), fill=Fill.FP8_CODES)
    assert (
        hashlib.sha256(b"".join(draw_tensor(codes, seed=1))).hexdigest()
        == "7ccfd3d905bc995bb4a0a41f724a49322e7e8f5a5adf6ac79582b01146612221"
    )


def test_shards_open_and_the_index_names_every_tensor(built: Path) -> None:
    index = json.loads((built / "model.safetensors.index.json").read_text())
    seen = {}
    total = 0
    for path in sorted(built.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # noqa: SIM118 - a safetensors file is no mapping
                seen[name] = path.name
                entry = file.get_slice(name)
                width = {"F32": 4, "BF16": 2}.get(entry.get_dtype(), 1)
                total += math.prod(entry.get_shape()) * width
    assert seen == index["weight_map"]
    assert total == index["metadata"]["total_size"]
    # As published: one layer's table and scales in one shard, the last ones.
    assert seen["layers.3.engram.embed.weight"] == "model-00004-of-00004.safetensors"
    assert seen["layers.3.engram.embed.scale"] == "model-00004-of-00004.safetensors"


def test_official_names_and_shapes_at_the_real_size() -> None:
    """For the published config the list is the published one: counts and shapes of its inventory."""
    real = V41Size(
        vocab_size=129280, hidden_size=5120, moe_intermediate_size=2304, num_attention_heads=64, o_groups=8,
        q_lora_rank=1280, o_lora_rank=1024, rms_norm_eps=1e-20, n_routed_experts=384, num_experts_per_tok=6,
        compress_ratios=(0, 0, *[2] * 18, *[1] * 20, 0, 0, 0), kv_source_layer_ids=(2, 8, 14, 20),
        index_source_layer_ids=(2, 8, 14, 20, 24, 28, 32, 36), candidate_source_layer_id=20,
        candidate_topk_blocks=2048, index_n_heads=32, index_topk=512, engram_layer_ids=(1, 14),
        engram_vocab_size=16_000_000, engram_head_dim=256, dspark_block_size=5,
        dspark_target_layer_ids=(37, 38, 39), dspark_markov_rank=256, dspark_n_routed_experts=128,
        dspark_num_experts_per_tok=3,
    )  # fmt: skip
    specs = {spec.name: spec for shard in plan_shards(real).values() for spec in shard}
    assert specs["layers.1.engram.embed.weight"].shape == (384006168, 256)
    assert specs["layers.14.engram.embed.scale"].shape == (384016682, 8)
    assert specs["layers.1.engram.wkv.weight"].shape == (25600, 6144)
    assert specs["layers.0.ffn.experts.383.w1.weight"].shape == (2304, 2560)
    assert specs["layers.0.ffn.experts.383.w2.scale"].shape == (5120, 72)
    assert specs["layers.9.attn.wq_b.weight"].shape == (32768, 1280)
    assert specs["layers.9.attn.wo_a.weight"].shape == (8192, 4096)
    assert specs["mtp.0.main_proj.weight"].shape == (5120, 15360)
    assert specs["mtp.2.confidence_head.proj.weight"].shape == (1, 5376)
    routed = [name for name in specs if name.startswith("layers.") and ".experts." in name]
    assert len([name for name in routed if name.endswith(".weight")]) == 46_080
    assert len([name for name in specs if name.startswith("mtp.")]) == 2_401
    assert not any(name.startswith("model.") for name in specs)
    gates = {name for name in specs if "compressor.wgate" in name}
    assert gates == {f"layers.{layer}.attn.compressor.wgate.weight" for layer in (2, 8, 14)}


def test_an_image_tower_at_the_real_size_has_the_published_bytes() -> None:
    tower = VisionSize(
        num_hidden_layers=32, hidden_size=1024, num_attention_heads=16, intermediate_size=2816,
        max_image_tokens=1024, min_pixels=295936,
    )  # fmt: skip
    specs = {spec.name: spec for spec in list_tensors(replace(CPU, hidden_size=5120, vision=tower))}
    own = [spec for name, spec in specs.items() if name.startswith(("vision.", "aligner.", "image_"))]
    assert sum(map(num_bytes, own)) == pytest.approx(0.97e9, rel=0.002)  # 0.97 GB in the published file list
    assert specs["aligner.w1.weight"].shape == (5120, 9216)  # 3 x 3 patches a token
    assert {spec.dtype for spec in own} == {"BF16"}


def test_a_text_model_s_folder_is_kept_since_there_are_towers(built: Path) -> None:
    """Its record names no tower, as those of earlier versions."""
    assert "vision" not in json.loads((built / "tiny_model.json").read_text())["size"]
    assert "vision_config" not in json.loads((built / "config.json").read_text())


def test_config_and_tokenizer_fit_the_engram_rules(built: Path) -> None:
    config = read_engram_config(built)
    assert make_hash_layout(config).num_columns == 24
    token_map = load_token_map(built, expected_classes=config.engram_compressed_vocab_size)
    assert len(token_map.class_ids) == SMALL.vocab_size
    assert 256 < token_map.num_classes < SMALL.vocab_size  # capitals fold, so some ids share a class


def test_a_cut_build_goes_on_and_a_foreign_folder_is_refused(built: Path, tmp_path: Path) -> None:
    out = tmp_path / "cut"
    build_v41(out, SMALL, seed=7)
    (out / "model.safetensors.index.json").unlink()
    last = out / "model-00004-of-00004.safetensors"
    last.rename(out / f".{last.name}.part")
    first = out / "model-00001-of-00004.safetensors"
    before = first.stat().st_mtime_ns
    lines: list[str] = []
    build_v41(out, SMALL, seed=7, report=lines.append)
    assert first.stat().st_mtime_ns == before
    assert "kept" in lines[0] and "kept" not in lines[3]
    assert digests(out) == digests(built)

    with pytest.raises(SettingError, match="got one of another size or seed"):
        build_v41(out, SMALL, seed=9)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("keep")
    with pytest.raises(SettingError, match=r"got 'thesis\.txt' in it"):
        build_v41(tmp_path / "mine", SMALL, seed=7)


def test_values_have_the_size_a_weight_needs() -> None:
    spec = next(spec for spec in list_tensors(CPU) if spec.name == "layers.0.attn.wq_b.weight")
    scales = next(spec for spec in list_tensors(CPU) if spec.name == "layers.0.attn.wq_b.scale")
    codes = np.frombuffer(b"".join(draw_tensor(spec, seed=1)), dtype=np.uint8)
    decoded = np.array([decode_e4m3(code) for code in range(256)])
    assert not np.isin(codes & 0x7F, 0x7F).any()  # no NaN
    exponents = np.frombuffer(b"".join(draw_tensor(scales, seed=1)), dtype=np.uint8).astype(int) - 127
    std = float(decoded[codes].std() * np.mean(2.0**exponents))
    assert 0.4 * CPU.q_lora_rank**-0.5 < std < 1.6 * CPU.q_lora_rank**-0.5


@pytest.mark.parametrize(
    ("value", "code"), [(0.0, 0), (1.0, 0x38), (-1.0, 0xB8), (448.0, 0x7E), (2.0**-9, 1)]
)
def test_e4m3_codes(value: float, code: int) -> None:
    assert encode_e4m3(value) == code
    assert decode_e4m3(code) == value


def test_bf16_rounds_to_even() -> None:
    values = np.array([1.0, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8], dtype=np.float32)
    assert round_to_bf16(values).tolist() == [0x3F80, 0x3F80, 0x3F82]


def test_engram_tables_can_be_made_large() -> None:
    big = resize(H200, engram_vocab_size=1_000_000)
    tables = list(plan_shards(big).values())[2:]
    assert [shard[0].shape[0] for shard in tables] == [24003916, 24010950]
    assert num_bytes(tables[0][0]) == tables[0][0].shape[0] * 256
