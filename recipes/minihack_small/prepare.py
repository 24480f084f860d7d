"""Builds and warm-starts both models: ``python -m recipes.minihack_small.prepare --output DIR``.

The result is cached under a hash of all its source files; a second call returns immediately.
"""

import sys
from dataclasses import replace
from pathlib import Path

from recipes.tiny_models.build import build, main, save

SOURCES = ("recipes/minihack_small", "env_adapters/minihack")
MAX_TURNS = 8  # the same as in run.sh: the number is part of the prompt


def prepare(output: Path) -> None:
    """Build ``output/actor`` and ``output/extractor`` unless they are up to date."""
    build(output, sources=SOURCES, tokenizer=_train_tokenizer, actor=_train_actor, extractor=_train_extractor)


def _train_tokenizer(folder: Path) -> None:
    from recipes.minihack_small.actor_demonstrations import demonstrate
    from recipes.minihack_small.extractor_demonstrations import answers, distillations, merges
    from recipes.tiny_models.tokenizer import train_tokenizer

    episodes = list(demonstrate(400, max_turns=MAX_TURNS, seed=0))
    corpus = [(episode.messages, episode.tools) for episode in episodes]
    for texts in (distillations(episodes, seed=0), merges(400, seed=0), answers(400, seed=0)):
        corpus += [(messages, []) for messages in texts]
    train_tokenizer(corpus).save_pretrained(folder)


def _train_actor(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.minihack_small.actor_demonstrations import demonstrate, exercises
    from recipes.tiny_models.models import build_model
    from recipes.tiny_models.warm_start import encode, warm_start

    torch.set_num_threads(1)  # the other model trains at the same time
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=1)
    turns = [encode(tokenizer, messages) for messages in exercises(2500, max_turns=MAX_TURNS, seed=1)]
    warm_start(model, turns, folder, steps=1300, batch_size=16, learning_rate=3e-3, seed=1)
    played = demonstrate(1200, max_turns=MAX_TURNS, seed=2)
    episodes = [encode(tokenizer, episode.messages, episode.tools) for episode in played]
    loss = warm_start(model, episodes, folder, steps=900, batch_size=2, learning_rate=2e-3, seed=2)
    save(model, tokenizer, folder / "actor", loss)


def _train_extractor(folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.minihack_small.actor_demonstrations import demonstrate
    from recipes.minihack_small.extractor_demonstrations import answers, distillations, merges
    from recipes.tiny_models.models import build_model
    from recipes.tiny_models.warm_start import encode, warm_start

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=2)
    episodes = list(demonstrate(1600, max_turns=MAX_TURNS, seed=5))
    # The format of an answer is learned much faster from short prompts.
    prefixes = [replace(episode, turns=episode.turns[:2]) for episode in episodes]
    forms = [*merges(1600, seed=3), *answers(800, seed=4), *distillations(prefixes, seed=8)]
    short = [encode(tokenizer, messages) for messages in forms]
    warm_start(model, short, folder, steps=500, batch_size=16, learning_rate=3e-3, seed=3)
    mixed = [*distillations(episodes, seed=5), *merges(400, seed=6), *answers(150, seed=7)]
    examples = [encode(tokenizer, messages) for messages in mixed]
    loss = warm_start(model, examples, folder, steps=400, batch_size=4, learning_rate=2e-3, seed=4)
    save(model, tokenizer, folder / "extractor", loss)


if __name__ == "__main__":
    sys.exit(main(prepare, "Build and warm-start small models that know rooms of MiniHack."))
