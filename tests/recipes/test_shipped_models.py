"""The miniature's shipped models still fit the prompts, demonstrations and tokenizer of the code."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from env_adapters.vaults.world import ADJECTIVES, FAMILIES, KINDS, MOVES, NOUNS
from recipes.miniature.demonstrations import HEEDING, demonstrate, distillations
from recipes.miniature.entries import ORDINALS, SEEN, TRIED, WORKED
from recipes.miniature.examples import digest_of_examples
from recipes.miniature.run import MODELS
from recipes.miniature.settings import SETTINGS, Name
from recipes.tiny_models.warm_start import encode
from verl_comprl.rollout.messages import Message


def loss(folder: Path, conversations: Iterable[list[Message]]) -> float:
    """Mean loss per token of the assistant's, in nats."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    total, count = 0.0, 0
    for messages in conversations:
        example = encode(tokenizer, messages)
        ids, labels = torch.tensor([example["input_ids"]]), torch.tensor([example["labels"]])
        with torch.inference_mode():
            mean = model(input_ids=ids, labels=labels).loss.item()
        labelled = int((labels[:, 1:] >= 0).sum())
        total, count = total + mean * labelled, count + labelled
    return total / count


EXAMPLES: dict[Name, str] = {"plain": "b58ecaef0cc5cac0", "full": "1d9f346e8e7159de"}


@pytest.mark.parametrize("setting", EXAMPLES)
def test_prompts_and_tokens_are_those_that_the_models_were_trained_on(setting: Name) -> None:
    # If they are meant to be others, train the models again: python -m recipes.miniature.prepare --setting …
    assert digest_of_examples(MODELS / setting / "actor", SETTINGS[setting]) == EXAMPLES[setting]


@pytest.mark.parametrize("setting", EXAMPLES)
@pytest.mark.parametrize("model", ["actor", "extractor"])
def test_words_that_carry_meaning_are_single_tokens_of_the_shipped_models(setting: Name, model: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(MODELS / setting / model)
    for word in (*MOVES, *KINDS, *FAMILIES, *ADJECTIVES, *NOUNS, *ORDINALS):
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1, word


# The loss of the demonstrator itself, who is random, is about 0.35.
@pytest.mark.parametrize(("model", "limit"), [("actor", 0.45), ("extractor", 0.45)])
def test_the_models_know_what_they_were_trained_on(model: str, limit: float) -> None:
    episodes = list(demonstrate(random.Random("test"), 60, obeys=(0.7,), kinds=HEEDING))
    contents = {WORKED: 2, TRIED: 1, SEEN: 1}
    answers = distillations(random.Random(1), iter(episodes), contents=contents)
    shown = [episode.messages for episode in episodes] if model == "actor" else list(answers)
    assert loss(MODELS / "plain" / model, shown) < limit
