"""The tiny Qwen3: the same bytes always, a size that divides, and replies that win by a wide margin.

The model is computed here once more, in NumPy and from the written files alone.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from sgl_ext.errors import SettingError
from sgl_ext.tiny_model.conversations import Conversation, read_conversations
from sgl_ext.tiny_model.qwen3 import make_qwen3_files
from sgl_ext.tiny_model.write_directory import write_directory

# Engines differ in rounding by far less than one; what must not happen is a near tie.
MARGIN = 2.0
CONVERSATIONS = read_conversations()


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("models") / "tiny-qwen3"
    write_directory(target, make_qwen3_files())
    return target


class NumpyQwen3:
    """Qwen3's forward pass, all positions at once. Legend: T tokens, H heads, D head size, N hidden size."""

    def __init__(self, model_dir: Path) -> None:
        self.config = json.loads((model_dir / "config.json").read_text())
        self.weights = load_file(model_dir / "model.safetensors")

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        scale = np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / scale * self.weights[name]

    def rotate(self, x_thd: np.ndarray) -> np.ndarray:
        half = x_thd.shape[-1] // 2
        steps = self.config["rope_theta"] ** (-np.arange(half) / half)
        angle = (np.arange(len(x_thd))[:, None] * steps)[:, None, :]
        low, high = x_thd[..., :half], x_thd[..., half:]
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)

    def attend(self, x_tn: np.ndarray, layer: str) -> np.ndarray:
        def project(name: str) -> np.ndarray:
            return (x_tn @ self.weights[f"{layer}.{name}_proj.weight"].T).reshape(
                len(x_tn), -1, self.config["head_dim"]
            )

        q_thd = self.rotate(self.norm(project("q"), f"{layer}.q_norm.weight"))
        k_thd = self.rotate(self.norm(project("k"), f"{layer}.k_norm.weight"))
        scores_htt = np.einsum("qhd,khd->hqk", q_thd, k_thd) / np.sqrt(self.config["head_dim"])
        scores_htt += np.triu(np.full(scores_htt.shape[1:], -np.inf), k=1)
        chance_htt = np.exp(scores_htt - scores_htt.max(axis=-1, keepdims=True))
        chance_htt /= chance_htt.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", chance_htt, project("v")).reshape(len(x_tn), -1)
        return mixed @ self.weights[f"{layer}.o_proj.weight"].T

    def feed_forward(self, x_tn: np.ndarray, layer: str) -> np.ndarray:
        gate = x_tn @ self.weights[f"{layer}.gate_proj.weight"].T
        up = x_tn @ self.weights[f"{layer}.up_proj.weight"].T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"{layer}.down_proj.weight"].T

    def logits(self, tokens: list[int]) -> np.ndarray:
        embedding = self.weights["model.embed_tokens.weight"].astype(np.float64)
        x_tn = embedding[tokens]
        for index in range(self.config["num_hidden_layers"]):
            layer = f"model.layers.{index}"
            x_tn = x_tn + self.attend(
                self.norm(x_tn, f"{layer}.input_layernorm.weight"), f"{layer}.self_attn"
            )
            normed = self.norm(x_tn, f"{layer}.post_attention_layernorm.weight")
            x_tn = x_tn + self.feed_forward(normed, f"{layer}.mlp")
        result: np.ndarray = self.norm(x_tn, "model.norm.weight") @ embedding.T
        return result


def test_known_bytes() -> None:
    """Changes only with the model itself, never with the machine or a library's version."""
    digest = hashlib.sha256()
    for name, content in sorted(make_qwen3_files().items()):
        digest.update(name.encode() + b"\0" + content)
    assert digest.hexdigest() == "6e3eb29e6ca7e77b8997ccbf620d94c8d0450047114fd214f9eb33303b0734a7"


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4])
def test_the_sizes_divide(model_dir: Path, num_ranks: int) -> None:
    config = json.loads((model_dir / "config.json").read_text())
    assert config["num_attention_heads"] % num_ranks == 0
    assert config["num_key_value_heads"] % num_ranks == 0
    assert config["intermediate_size"] % num_ranks == 0
    assert config["torch_dtype"] == "float32"


@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda conversation: conversation.questions[0])
def test_every_answer_wins_by_a_margin(model_dir: Path, conversation: Conversation) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    model = NumpyQwen3(model_dir)
    answer = tokenizer.encode(conversation.answer + "<|im_end|>").ids
    for question in conversation.questions:
        prompt = tokenizer.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids
        logits = model.logits(prompt + answer)[len(prompt) - 1 : -1]
        assert logits.argmax(axis=-1).tolist() == answer
        second, first = np.sort(logits, axis=-1)[:, -2:].T
        assert (first - second).min() >= MARGIN


def test_an_unknown_question_gets_the_first_answer(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    answer = tokenizer.encode(CONVERSATIONS[0].answer).ids
    prompt = tokenizer.encode("<|im_start|>user\nWhat is 17 times 3?<|im_end|>\n<|im_start|>assistant\n").ids
    logits = NumpyQwen3(model_dir).logits(prompt + answer)[len(prompt) - 1 : -1]
    assert logits.argmax(axis=-1).tolist() == answer


def test_the_tokenizer_loses_no_byte(model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    text = "".join(map(chr, range(32, 0x250))) + "\n\t" + "\U0001f600"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.get_vocab_size() == json.loads((model_dir / "config.json").read_text())["vocab_size"]


def test_written_as_a_whole_and_once(tmp_path: Path) -> None:
    files = make_qwen3_files()
    target = tmp_path / "deep" / "tiny"
    assert write_directory(target, files)
    assert not write_directory(target, files)
    assert [path.name for path in target.parent.iterdir()] == ["tiny"]  # nothing temporary is left


def test_a_damaged_tiny_model_is_replaced(tmp_path: Path) -> None:
    files = make_qwen3_files()
    target = tmp_path / "tiny"
    write_directory(target, files)
    (target / "model.safetensors").write_bytes(b"cut")
    assert write_directory(target, files)
    assert (target / "model.safetensors").read_bytes() == files["model.safetensors"]


@pytest.mark.parametrize(
    "content", [{"config.json": "{}"}, {"config.json": "no json"}, {"notes.txt": "mine"}]
)
def test_somebody_elses_directory_is_refused(tmp_path: Path, content: dict[str, str]) -> None:
    target = tmp_path / "model"
    target.mkdir()
    for name, text in content.items():
        (target / name).write_text(text)
    with pytest.raises(SettingError, match="must be new or hold a tiny model") as caught:
        write_directory(target, make_qwen3_files())
    assert "does not exist yet" in caught.value.hint
    assert {path.name: path.read_text() for path in target.iterdir()} == content


def test_written_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['x', 'qwen3', sys.argv[1]]\n"
        "from sgl_ext.tiny_model.__main__ import main; main()\n"
        "assert not {'torch', 'sglang', 'transformers', 'tokenizers'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "out")], check=True, timeout=60)
    assert (tmp_path / "out" / "config.json").is_file()


def test_an_odd_line_in_the_text_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "conversations.txt"
    text.write_text("Q: one\nB: two\n")
    with pytest.raises(ValueError, match=r"got 'B: two' \(conversations.txt:2\)"):
        read_conversations(text)
