"""Builds and warm-starts the miniature's models: ``python -m recipes.miniature.prepare --output DIR [--setting NAME]``.

The result for a setting is shipped in ``models/NAME``.
"""

import argparse
import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from recipes.miniature.settings import NAMES, SETTINGS, Name, Setting
from recipes.tiny_models.build import build, save
from verl_comprl.rollout.messages import Message

SOURCES = (
    "recipes/miniature/entries.py",
    "recipes/miniature/demonstrations.py",
    "recipes/miniature/mechanisms.py",
    "recipes/miniature/settings.py",
    "recipes/miniature/tokenizer.py",
    "recipes/miniature/prepare.py",
    "env_adapters/vaults",
)

BATCH = 32
ROPE_THETA = 1000.0

Conversation = tuple[list[Message], Sequence[dict[str, Any]]]
"""Messages, and the tools shown."""

Phase = tuple[Iterable[Conversation], int, float]
"""Conversations, optimizer steps and learning rate."""


def prepare(output: Path, setting: Name = "plain") -> None:
    """Build ``output/actor`` and ``output/extractor`` unless they are up to date."""
    chosen = SETTINGS[setting]
    build(
        output,
        sources=SOURCES,
        tokenizer=partial(_train_tokenizer, chosen),
        actor=partial(_train_actor, chosen),
        extractor=partial(_train_extractor, chosen),
    )


def _train_tokenizer(setting: Setting, folder: Path) -> None:
    from recipes.miniature.demonstrations import HEEDING, demonstrate, distillations
    from recipes.miniature.entries import SEEN, TRIED, WORKED
    from recipes.miniature.mechanisms import answers, merges
    from recipes.miniature.tokenizer import PIECES
    from recipes.tiny_models.tokenizer import train_tokenizer

    rng = random.Random("tokenizer")
    episodes = list(demonstrate(rng, 800, obeys=(0.2, 0.6, 0.9), kinds=HEEDING, asks=setting.asks))
    written = list(distillations(rng, iter(episodes), contents={WORKED: 1, TRIED: 1, SEEN: 1}))
    if setting.mechanisms:
        written += [*answers(rng, 200), *merges(rng, 400)]
    corpus = [(episode.messages, episode.tools) for episode in episodes] + [(messages, ()) for messages in written]
    train_tokenizer(corpus, setting.vocabulary, PIECES).save_pretrained(folder)


def _train_actor(setting: Setting, folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.miniature.demonstrations import HEEDING, READING, demonstrate, reading_drills
    from recipes.miniature.mechanisms import asking_drills
    from recipes.tiny_models.models import build_model

    torch.set_num_threads(1)  # the other model trains at the same time
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=1, heads=setting.actor_heads, rope_theta=ROPE_THETA)

    def played(number: int, count: int, obeys: Sequence[float], kinds: dict[str, float]) -> Iterator[Conversation]:
        rng = random.Random(f"actor/{number}")
        return (
            (episode.messages, episode.tools)
            for episode in demonstrate(rng, count, obeys=obeys, kinds=kinds, asks=setting.asks)
        )

    drills = [(messages, ()) for messages in reading_drills(random.Random("drills"), 400 * BATCH)]
    phases: list[Phase] = [(drills, 400, 4e-3)]
    if setting.mechanisms:
        asked = [(messages, ()) for messages in asking_drills(random.Random("questions"), 400 * BATCH)]
        phases.append(([*drills, *asked], 800, 4e-3))
    # The tool's schema stands before the entry, and reading past it takes longer to learn.
    steps = 800 if setting.mechanisms else 500
    phases += [
        (played(1, steps * BATCH, (0.3, 0.8), READING), steps, 3e-3),
        (played(2, 250 * BATCH, (0.7,), HEEDING), 250, 2e-3),
    ]
    _train(model, tokenizer, folder / "actor", phases)


def _train_extractor(setting: Setting, folder: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    from recipes.miniature.demonstrations import HEEDING, Demonstration, demonstrate, distillations, writing_drills
    from recipes.miniature.entries import SEEN, TRIED, WORKED
    from recipes.miniature.mechanisms import answers, merges, merging_drills
    from recipes.tiny_models.models import build_model

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "tokenizer")
    model = build_model(tokenizer, seed=2, heads=setting.extractor_heads, rope_theta=ROPE_THETA)

    def played(number: int, count: int, kinds: dict[str, float]) -> Iterator[Demonstration]:
        rng = random.Random(f"extractor/{number}")
        return demonstrate(rng, count, obeys=(0.2, 0.6, 0.9), kinds=kinds, asks=setting.asks)

    rng = random.Random("answers")
    styles = {WORKED: 2, TRIED: 1, SEEN: 1}
    calls = [
        (writing_drills(rng, played(0, 1300 * BATCH, {"none": 1})), 1000, 4e-3),
        (distillations(rng, played(1, 650 * BATCH, HEEDING), contents={WORKED: 1}), 500, 4e-3),
        (distillations(rng, played(2, 400 * BATCH, HEEDING), contents=styles), 400, 4e-3),
    ]
    if setting.mechanisms:
        drills, copies, last = calls
        others = random.Random("mechanisms")
        bare, listed = (partial(merging_drills, others, records=records) for records in (False, True))
        more = distillations(rng, played(3, 650 * BATCH, HEEDING), contents={WORKED: 1})
        again = writing_drills(rng, played(4, 1000 * BATCH, {"none": 1}))
        episodes = distillations(rng, played(5, 500 * BATCH, HEEDING), contents={WORKED: 1})
        all_styles = distillations(rng, played(6, 400 * BATCH, HEEDING), contents=styles)
        calls = [
            (bare(700 * BATCH), 700, 4e-3),
            ([*bare(200 * BATCH), *listed(500 * BATCH)], 700, 4e-3),
            ([*drills[0], *listed(300 * BATCH)], 1300, 4e-3),
            ([*copies[0], *merges(others, 200 * BATCH)], 700, 4e-3),
            ([*more, *answers(others, 100 * BATCH), *merges(others, 250 * BATCH)], 850, 4e-3),
            ([*last[0], *answers(others, 50 * BATCH), *merges(others, 150 * BATCH)], 600, 4e-3),
            # By now it copies what it lists, but no longer enough of what happened in an episode.
            ([*again, *listed(200 * BATCH)], 900, 4e-3),
            ([*episodes, *merges(others, 150 * BATCH)], 550, 4e-3),
            ([*all_styles, *answers(others, 50 * BATCH), *merges(others, 150 * BATCH)], 550, 4e-3),
        ]
    phases = [(((messages, ()) for messages in written), steps, rate) for written, steps, rate in calls]
    _train(model, tokenizer, folder / "extractor", phases)


def _train(model: Any, tokenizer: Any, folder: Path, phases: Iterable[Phase]) -> None:
    """Train a model in phases of conversations, steps and learning rate, and write it."""
    from recipes.tiny_models.warm_start import encode, warm_start

    loss = 0.0
    for number, (conversations, steps, rate) in enumerate(phases):
        loss = warm_start(
            model,
            [encode(tokenizer, messages, tools) for messages, tools in conversations],
            folder.parent,
            steps=steps,
            batch_size=BATCH,
            learning_rate=rate,
            seed=number,
            similar_lengths=False,
        )
        print(f"  {folder.name}, phase {number}: loss per token {loss:.2f}", flush=True)
    save(model, tokenizer, folder, loss)


def main() -> int:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Build and warm-start the two models of the miniature.")
    parser.add_argument("--output", type=Path, required=True, help="folder for the models")
    parser.add_argument("--setting", choices=NAMES, default="plain", help="default: plain")
    options = parser.parse_args()
    prepare(options.output.resolve(), options.setting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
