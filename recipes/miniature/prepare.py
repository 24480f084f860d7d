"""Builds and warm-starts the miniature's models: ``python -m recipes.miniature.prepare --output DIR``."""

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from recipes.tiny_models.build import build, main, save
from verl_comprl.rollout.messages import Message

SOURCES = (
    "recipes/miniature/entries.py",
    "recipes/miniature/demonstrations.py",
    "recipes/miniature/tokenizer.py",
    "recipes/miniature/prepare.py",
    "env_adapters/vaults",
)

VOCABULARY = 1000
BATCH = 32
ROPE_THETA = 1000.0

Phase = tuple[Iterable[list[Message]], int, float]
"""Conversations, optimizer steps and learning rate."""


def prepare(output: Path) -> None:
    """Build ``output/actor`` and ``output/extractor`` unless they are up to date."""
    build(output, sources=SOURCES, tokenizer=_train_tokenizer, actor=_train_actor, extractor=_train_extractor)


def _train_tokenizer(folder: Path) -> None:
    from recipes.miniature.demonstrations import HEEDING, demonstrate, distillations
    from recipes.miniature.entries import SEEN, TRIED, WORKED
    from recipes.miniature.tokenizer import PIECES
    from recipes.tiny_models.tokenizer import train_tokenizer

    rng = random.Random("tokenizer")
    episodes = list(demonstrate(rng, 800, obeys=(0.2, 0.6, 0.9), kinds=HEEDING))
    answers = distillations(rng, iter(episodes), contents={WORKED: 1, TRIED: 1, SEEN: 1})
    corpus = [episode.messages for episode in episodes] + list(answers)
    train_tokenizer([(messages, []) for messages in corpus], VOCABULARY, PIECES).save_pretrained(folder)


def _train_actor(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.miniature.demonstrations import HEEDING, READING, demonstrate, reading_drills
    from recipes.tiny_models.models import build_model

    torch.set_num_threads(1)  # the other model trains at the same time
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=1, rope_theta=ROPE_THETA)

    def played(number: int, count: int, obeys: Sequence[float], kinds: dict[str, float]) -> Iterator[list[Message]]:
        rng = random.Random(f"actor/{number}")
        return (episode.messages for episode in demonstrate(rng, count, obeys=obeys, kinds=kinds))

    phases = [
        (reading_drills(random.Random("drills"), 400 * BATCH), 400, 4e-3),
        (played(1, 500 * BATCH, (0.3, 0.8), READING), 500, 3e-3),
        (played(2, 250 * BATCH, (0.7,), HEEDING), 250, 2e-3),
    ]
    _train(model, tokenizer, folder / "actor", phases)


def _train_extractor(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.miniature.demonstrations import HEEDING, Demonstration, demonstrate, distillations, writing_drills
    from recipes.miniature.entries import SEEN, TRIED, WORKED
    from recipes.tiny_models.models import build_model

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=2, heads=4, rope_theta=ROPE_THETA)

    def played(number: int, count: int, kinds: dict[str, float]) -> Iterator[Demonstration]:
        return demonstrate(random.Random(f"extractor/{number}"), count, obeys=(0.2, 0.6, 0.9), kinds=kinds)

    rng = random.Random("answers")
    styles = {WORKED: 2, TRIED: 1, SEEN: 1}
    phases = [
        (writing_drills(rng, played(0, 1300 * BATCH, {"none": 1})), 1000, 4e-3),
        (distillations(rng, played(1, 650 * BATCH, HEEDING), contents={WORKED: 1}), 500, 4e-3),
        (distillations(rng, played(2, 400 * BATCH, HEEDING), contents=styles), 400, 4e-3),
    ]
    _train(model, tokenizer, folder / "extractor", phases)


def _train(model: Any, tokenizer: Any, folder: Path, phases: Iterable[Phase]) -> None:
    """Train a model in phases of conversations, steps and learning rate, and write it."""
    from recipes.tiny_models.warm_start import encode, warm_start

    loss = 0.0
    for number, (conversations, steps, rate) in enumerate(phases):
        loss = warm_start(
            model,
            [encode(tokenizer, messages) for messages in conversations],
            folder.parent,
            steps=steps,
            batch_size=BATCH,
            learning_rate=rate,
            seed=number,
            similar_lengths=False,
        )
        print(f"  {folder.name}, phase {number}: loss per token {loss:.2f}", flush=True)
    save(model, tokenizer, folder, loss)


if __name__ == "__main__":
    sys.exit(main(prepare, "Build and warm-start the two models of the miniature."))
