"""Fixed examples of what a pair of models was taught, as token ids: they tell whether a model still fits the code."""

import hashlib
import random
from pathlib import Path

from recipes.miniature.demonstrations import HEEDING, demonstrate, distillations
from recipes.miniature.entries import SEEN, TRIED, WORKED
from recipes.miniature.mechanisms import answers, merges
from recipes.miniature.settings import Setting

COUNT = 40


def digest_of_examples(tokenizer: Path, setting: Setting) -> str:
    """Return a hash of example conversations of actor and extractor in the tokens of a folder's tokenizer.

    It changes with the environment's texts, the prompts, the chat template and the tokens.
    """
    from transformers import AutoTokenizer

    tokens = AutoTokenizer.from_pretrained(tokenizer)
    rng = random.Random("examples")
    episodes = list(demonstrate(rng, COUNT, obeys=(0.7,), kinds=HEEDING, asks=setting.asks))
    written = list(distillations(rng, iter(episodes), contents={WORKED: 2, TRIED: 1, SEEN: 1}))
    if setting.mechanisms:
        written += [*answers(rng, COUNT), *merges(rng, COUNT)]
    shown = [(episode.messages, list(episode.tools)) for episode in episodes] + [(each, []) for each in written]
    digest = hashlib.sha256()
    for messages, tools in shown:
        ids = tokens.apply_chat_template(messages, tools=tools or None, tokenize=True, return_dict=False)
        digest.update(repr(ids).encode())
    return digest.hexdigest()[:16]
