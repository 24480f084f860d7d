"""Builds and warm-starts the miniature's models: ``python -m recipes.miniature.prepare --output DIR``."""

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from recipes.tiny_models.build import build, save
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
    from recipes.tiny_models.warm_start import encode, warm_start

    torch.set_num_threads(1)  # the other model trains at the same time
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=1, rope_theta=ROPE_THETA)

    def played(number: int, count: int, obeys: Sequence[float], kinds: dict[str, float]) -> Iterator[list[Message]]:
        rng = random.Random(f"actor/{number}")
        return (episode.messages for episode in demonstrate(rng, count, obeys=obeys, kinds=kinds))

    loss = 0.0
    for number, (conversations, steps, rate) in enumerate(
        (
            (reading_drills(random.Random("drills"), 400 * BATCH), 400, 4e-3),
            (played(1, 300 * BATCH, (0.3, 0.8), READING), 300, 3e-3),
            (played(2, 200 * BATCH, (0.6,), HEEDING), 200, 2e-3),
        )
    ):
        examples = [encode(tokenizer, messages) for messages in conversations]
        loss = warm_start(
            model,
            examples,
            folder,
            steps=steps,
            batch_size=BATCH,
            learning_rate=rate,
            seed=number,
            similar_lengths=False,
        )
        print(f"  actor, loss after phase {number}: {loss:.3f}", flush=True)
    save(model, tokenizer, folder / "actor", loss)


def _train_extractor(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.miniature.demonstrations import HEEDING, Demonstration, demonstrate, distillations, writing_drills
    from recipes.miniature.entries import SEEN, TRIED, WORKED
    from recipes.tiny_models.models import build_model
    from recipes.tiny_models.warm_start import encode, warm_start

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=2, rope_theta=ROPE_THETA)

    def played(number: int, count: int, kinds: dict[str, float]) -> Iterator[Demonstration]:
        return demonstrate(random.Random(f"extractor/{number}"), count, obeys=(0.2, 0.6, 0.9), kinds=kinds)

    rng = random.Random("answers")
    styles = {WORKED: 2, TRIED: 1, SEEN: 1}
    loss = 0.0
    for number, (conversations, steps, rate) in enumerate(
        (
            (writing_drills(rng, played(0, 1200 * BATCH, {"none": 1})), 1200, 5e-3),
            (distillations(rng, played(1, 250 * BATCH, HEEDING), contents={WORKED: 1}), 250, 4e-3),
            (distillations(rng, played(2, 350 * BATCH, HEEDING), contents=styles), 350, 4e-3),
        )
    ):
        examples = [encode(tokenizer, messages) for messages in conversations]
        loss = warm_start(
            model,
            examples,
            folder,
            steps=steps,
            batch_size=BATCH,
            learning_rate=rate,
            seed=number,
            similar_lengths=False,
        )
        print(f"  extractor, loss after phase {number}: {loss:.3f}", flush=True)
    save(model, tokenizer, folder / "extractor", loss)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Build and warm-start the two models of the miniature.")
    parser.add_argument("--output", type=Path, required=True, help="folder for the models")
    prepare(parser.parse_args().output.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
