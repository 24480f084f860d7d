"""A small tokenizer and a few episodes, made once."""

import pytest

from recipes.minihack_small.actor_demonstrations import Demonstration, demonstrate
from recipes.minihack_small.extractor_demonstrations import answers, distillations, merges
from recipes.tiny_models.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def episodes() -> list[Demonstration]:
    return list(demonstrate(60, max_turns=6, seed=0))


@pytest.fixture(scope="session")
def tokenizer(episodes):
    calls = [*distillations(episodes, seed=0), *merges(40, seed=0), *answers(40, seed=0)]
    return train_tokenizer([(episode.messages, episode.tools) for episode in episodes] + [(call, []) for call in calls])
