"""Supervised warm-up of a model in the formats of actor and extractor in FrozenLake, without teaching it to play well.

Actions do not depend on the map, nor lessons on the outcome; the run finds out which of them help.
"""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipes.mix_models.answers import answers, distillations, merges
from recipes.mix_models.demonstrations import Demonstration, demonstrate
from recipes.smollm2.lake import LAKE, MAX_TURNS
from recipes.smollm2.stream import encode
from recipes.tiny_models.warm_start import Example, warm_start
from verl_comprl.platform.detection import server_dtype
from verl_comprl.rollout.messages import Message

STEPS = 140
BATCH_SIZE = 2
LEARNING_RATE = 5e-4
FROZEN_LAYERS = 15
"""Lower half of the layers: they keep their weights, as the embeddings do, which is a third cheaper."""

_SHARES = {"act": 0.25, "distill": 0.4, "merge": 0.25, "answer": 0.1}
_TURNS = (1, 1, 2, 2, 3, MAX_TURNS)
"""Where episodes are cut off: the formats are learned from few turns, at less cost."""
_LISTED = 1
"""As ``comprl.extractor.list_nearest`` in cpu.yaml."""


def make_examples(tokenizer: Any, count: int, *, seed: int) -> list[Example]:
    """Return about ``count`` episodes of the actor and calls of the extractor, encoded; equal seeds give equal ones."""
    sizes = {kind: round(share * count) for kind, share in _SHARES.items()}
    rng = random.Random(f"smollm2 {seed}")
    episodes = list(demonstrate(sizes["act"] + sizes["distill"], seed=seed, families=[LAKE], max_turns=MAX_TURNS))
    episodes = [_cut(episode, rng.choice(_TURNS)) for episode in episodes]
    played, read = episodes[: sizes["act"]], episodes[sizes["act"] :]
    calls = [
        *distillations(rng, read, [LAKE], max_similar=_LISTED),
        *merges(rng, sizes["merge"], [LAKE]),
        *answers(rng, sizes["answer"], [LAKE]),
    ]
    examples = [encode(tokenizer, episode.messages, episode.tools) for episode in played]
    return examples + [encode(tokenizer, call) for call in calls]


def _cut(episode: Demonstration, turns: int) -> Demonstration:
    """Return an episode of at most ``turns`` turns."""
    if turns >= len(episode.turns):
        return episode
    actions = [index for index, each in enumerate(episode.messages) if "</action>" in _written(each)]
    return replace(
        episode,
        messages=episode.messages[: actions[turns - 1] + 1],
        turns=episode.turns[:turns],
        final_observation=episode.turns[turns].observation,
    )


def _written(message: Message) -> str:
    return message["content"] if message["role"] == "assistant" else ""


def teach(folder: Path) -> None:
    """Train the model of ``folder`` and write it back; prints progress."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.requires_grad_(False)
    model.model.layers[FROZEN_LAYERS:].requires_grad_(True)
    examples = make_examples(tokenizer, STEPS * BATCH_SIZE, seed=1)
    fast = server_dtype() == "bfloat16"
    # Without the cache, which would keep the weights of the first step for as long as the context is open.
    with torch.autocast("cpu", torch.bfloat16, enabled=fast, cache_enabled=False):
        warm_start(
            model,
            examples,
            folder,
            steps=STEPS,
            batch_size=BATCH_SIZE,
            learning_rate=LEARNING_RATE,
            seed=1,
            progress=lambda step, loss: print(f"  step {step} of {STEPS}, loss per token {loss:.2f}", flush=True),
        )
    model.save_pretrained(folder)
