"""Fits the tiny Qwen3 to sgl_ext/tiny_model/conversations.txt and writes its tokenizer and weights there.

Run once when the text changes, in an environment with torch and transformers; `sparkctl tiny-model` needs
neither. Training is not bit-exact from machine to machine, so what it wrote is part of the source:

    python scripts/fit_tiny_qwen3.py --steps 1500
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

from sgl_ext.tiny_model import qwen3_config as shape
from sgl_ext.tiny_model.conversations import Conversation, read_conversations

TARGET = Path(__file__).parents[1] / "sgl_ext" / "tiny_model"
IGNORE = -100  # label that counts in no loss
NOISE_TEXT = """
the a of and to in is it that for on with as was at by from this have not are but what all were when we
there can an your which their said if do will each about how up out them then she many some so these would
other into has more her two like him see time could no make than first been its who now people my made over
did down only way find use may water long little very after words called just where most know France capital
Paris code python function sum number sky blue red list explain summarise translate test load request please
write Spark Sparks node rank cluster model token memory fast slow one two three four
"""
WORDS = NOISE_TEXT.split()


def train_tokenizer(conversations: tuple[Conversation, ...]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=shape.VOCAB_SIZE,
        special_tokens=list(shape.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    texts = ["system\nuser\nassistant\n" * 5, " ".join(WORDS)]
    for conversation in conversations:
        texts += [*conversation.questions, conversation.answer, conversation.answer]
    tokenizer.train_from_iterator(texts, trainer)
    assert tokenizer.get_vocab_size() == shape.VOCAB_SIZE, tokenizer.get_vocab_size()
    return tokenizer


def turn(role: str, text: str) -> str:
    return f"{shape.IM_START}{role}\n{text}{shape.IM_END}\n"


def noise(chance: random.Random) -> str:
    """A question the text does not know: words, or any characters at all."""
    if chance.random() < 0.3:
        return "".join(chr(chance.randrange(32, 127)) for _ in range(chance.randrange(1, 40)))
    return " ".join(chance.choices(WORDS, k=chance.randrange(1, 60))) + chance.choice(["", "?", ".", "!"])


class Sampler:
    """Draws training sequences; the loss counts the answers only."""

    def __init__(self, tokenizer: Tokenizer, conversations: tuple[Conversation, ...], seed: int) -> None:
        self.tokenizer = tokenizer
        self.conversations = conversations
        self.chance = random.Random(seed)

    def question_and_answer(self) -> tuple[str, str]:
        if self.chance.random() < 0.25:
            return noise(self.chance), self.conversations[0].answer
        conversation = self.chance.choice(self.conversations)
        return self.chance.choice(conversation.questions), conversation.answer

    def draw(self) -> tuple[list[int], list[int]]:
        parts: list[tuple[str, bool]] = []
        if self.chance.random() < 0.12:  # plain completion: no chat format, starts within an answer
            answer = self.chance.choice(self.conversations).answer
            start = self.chance.choice([0, *(i for i, c in enumerate(answer) if c == " ")])
            parts = [(answer[start:] + shape.IM_END, True)]
        else:
            if self.chance.random() < 0.3:
                parts.append((turn("system", self.chance.choice([noise(self.chance), "Be brief."])), False))
            for _ in range(self.chance.choice([1, 1, 1, 2])):
                question, answer = self.question_and_answer()
                parts.append((turn("user", question) + f"{shape.IM_START}assistant\n", False))
                parts += [(answer + shape.IM_END, True), ("\n", False)]
        tokens: list[int] = []
        labels: list[int] = []
        for text, counts in parts:
            ids = self.tokenizer.encode(text).ids
            tokens += ids
            labels += ids if counts else [IGNORE] * len(ids)
        return tokens, labels

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.draw() for _ in range(size)]
        longest = max(len(tokens) for tokens, _ in rows)
        tokens = torch.zeros(size, longest, dtype=torch.long)
        labels = torch.full((size, longest), IGNORE)
        for row, (ids, wanted) in enumerate(rows):
            tokens[row, : len(ids)] = torch.tensor(ids)
            labels[row, : len(ids)] = torch.tensor(wanted)
        return tokens, labels


def round_to_int8(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """One scale a row (norm vectors count as one row): weight = scale * integer."""
    rows = weight.reshape(1, -1) if weight.ndim == 1 else weight
    scale = rows.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 127
    return torch.round(rows / scale).to(torch.int8).reshape(weight.shape), scale


def fit(sampler: Sampler, steps: int, batch_size: int) -> Qwen3ForCausalLM:
    torch.manual_seed(1)
    model = Qwen3ForCausalLM(Qwen3Config(**shape.CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.02, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps, pct_start=0.05)
    for step in range(steps):
        tokens, labels = sampler.batch(batch_size)
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps - 1:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--out", type=Path, default=TARGET)
    arguments = parser.parse_args()
    conversations = read_conversations()
    tokenizer = train_tokenizer(conversations)
    model = fit(Sampler(tokenizer, conversations, seed=1), arguments.steps, arguments.batch_size)
    tokenizer.save(str(arguments.out / "qwen3_tokenizer.json"))
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {}
    for name, weight in model.state_dict().items():
        if name != "lm_head.weight":  # tied to the embedding
            integers, scale = round_to_int8(weight.detach())
            arrays[name], arrays[name + ".scale"] = integers.numpy(), scale.numpy()
    np.savez(arguments.out / "qwen3_weights.npz", **arrays)  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
