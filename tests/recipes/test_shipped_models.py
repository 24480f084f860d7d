"""The miniature's shipped models still fit the prompts, demonstrations and tokenizer of the code."""

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.miniature.demonstrations import HEEDING, demonstrate, distillations
from recipes.miniature.entries import SEEN, TRIED, WORKED
from recipes.miniature.run import MODELS
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


# The loss of the demonstrator itself, who is random, is about 0.35; a changed prompt or token costs far more than 0.1.
@pytest.mark.parametrize(("model", "limit"), [("actor", 0.45), ("extractor", 0.45)])
def test_the_models_know_what_they_were_trained_on(model: str, limit: float) -> None:
    episodes = list(demonstrate(random.Random("test"), 60, obeys=(0.7,), kinds=HEEDING))
    contents = {WORKED: 2, TRIED: 1, SEEN: 1}
    answers = distillations(random.Random(1), iter(episodes), contents=contents)
    shown = [episode.messages for episode in episodes] if model == "actor" else list(answers)
    assert loss(MODELS / "plain" / model, shown) < limit
