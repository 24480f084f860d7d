"""Builds and warm-starts the models of the mixes on the CPU: ``python -m recipes.mix_models.prepare --output DIR``.

The models of recipes/minihack_small know rooms of MiniHack only: on any other family they neither act, ask nor write.
"""

import random
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.mix_models.demonstrations import Demonstration
from recipes.tiny_models.build import build, main, save
from verl_comprl.rollout.messages import Message

SOURCES = ("recipes/mix_models", *(f"env_adapters/{name}" for name in ("minihack", "webshop", "alfworld", "sokoban")))
VOCABULARY = 4096

Phase = tuple[Iterable[tuple[list[Message], list[dict[str, Any]]]], int, int, float]
"""Conversations with their tools, optimizer steps, examples per step, learning rate."""


def prepare(output: Path) -> None:
    """Build ``output/actor`` and ``output/extractor`` unless they are up to date."""
    build(output, sources=SOURCES, tokenizer=_train_tokenizer, actor=_train_actor, extractor=_train_extractor)


def _train_tokenizer(folder: Path) -> None:
    from recipes.mix_models.answers import answers, distillations, merges
    from recipes.mix_models.demonstrations import demonstrate
    from recipes.tiny_models.tokenizer import train_tokenizer

    rng, episodes = random.Random("tokenizer"), list(demonstrate(50, seed=0))
    corpus = [(episode.messages, episode.tools) for episode in episodes]
    for calls in (distillations(rng, episodes), merges(rng, 300), answers(rng, 300)):
        corpus += [(messages, []) for messages in calls]
    train_tokenizer(corpus, VOCABULARY).save_pretrained(folder)


def _train_actor(folder: Path) -> None:
    from recipes.mix_models.demonstrations import demonstrate

    episodes = list(demonstrate(200, seed=1))
    # The format of a turn is learned from short conversations, whole episodes show what follows it.
    starts = [(_first_turn(episode), episode.tools) for episode in episodes]
    whole = [(episode.messages, episode.tools) for episode in episodes]
    _train(folder, "actor", seed=1, phases=[(starts, 400, 8, 3e-3), (whole, 300, 4, 2e-3)])


def _train_extractor(folder: Path) -> None:
    from recipes.mix_models.answers import answers, distillations, merges
    from recipes.mix_models.demonstrations import demonstrate

    rng, episodes = random.Random("extractor"), list(demonstrate(150, seed=2))
    prefixes = [replace(episode, turns=episode.turns[:1]) for episode in episodes]
    forms = [*merges(rng, 900), *answers(rng, 400), *distillations(rng, prefixes)]
    mixed = [*distillations(rng, episodes), *merges(rng, 300), *answers(rng, 100)]
    short, long = ([(call, []) for call in calls] for calls in (forms, mixed))
    _train(folder, "extractor", seed=2, phases=[(short, 500, 8, 3e-3), (long, 300, 4, 2e-3)])


def _first_turn(episode: Demonstration) -> list[Message]:
    """Return the conversation up to and with the first action."""
    for end, message in enumerate(episode.messages, start=1):
        if message["role"] == "assistant" and "<action>" in message["content"]:
            return episode.messages[:end]
    return episode.messages


def _train(folder: Path, name: str, *, seed: int, phases: Iterable[Phase]) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.tiny_models.models import build_model
    from recipes.tiny_models.warm_start import encode, warm_start

    torch.set_num_threads(1)  # the other model trains at the same time
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=seed)
    loss = 0.0
    for number, (conversations, steps, batch_size, rate) in enumerate(phases):
        examples = [encode(tokenizer, messages, tools) for messages, tools in conversations]
        loss = warm_start(
            model, examples, folder, steps=steps, batch_size=batch_size, learning_rate=rate, seed=10 * seed + number
        )
    save(model, tokenizer, folder / name, loss)


if __name__ == "__main__":
    sys.exit(main(prepare, "Build and warm-start the small models of the mixes."))
