"""A model that is built and trained for a few steps."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from recipes.tiny_models.models import build_model
from recipes.tiny_models.warm_start import IGNORED, encode, warm_start


def test_model_has_exactly_the_tokenizers_embeddings_and_comes_back_from_its_folder(tokenizer, tmp_path):
    model = build_model(tokenizer, seed=0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.vocab_size == len(tokenizer) == len(AutoTokenizer.from_pretrained(tmp_path))
    assert loaded.dtype == torch.float32 and (tmp_path / "model.safetensors").exists()
    assert loaded.get_input_embeddings().weight is loaded.lm_head.weight
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id
    text = [{"role": "user", "content": "go"}]
    again = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(text, tokenize=True, return_dict=False)
    assert again == tokenizer.apply_chat_template(text, tokenize=True, return_dict=False)


def test_another_seed_gives_other_weights(tokenizer):
    first, same, other = (build_model(tokenizer, seed=seed).lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(first, same) and not torch.equal(first, other)


@pytest.mark.slow
def test_loss_falls_and_counts_the_assistants_tokens_only(tokenizer, episodes, tmp_path):
    model = build_model(tokenizer, seed=0)
    examples = [encode(tokenizer, episode.messages, episode.tools) for episode in episodes[:8]]

    def loss() -> float:
        ids, labels = (torch.tensor([examples[0][key]]) for key in ("input_ids", "labels"))
        with torch.no_grad():
            logits = model(input_ids=ids).logits
        return float(cross_entropy(logits[0, :-1], labels[0, 1:], ignore_index=IGNORED))

    before = loss()
    last = warm_start(model, examples[:1], tmp_path, steps=1, batch_size=1, learning_rate=1e-9, seed=0)
    assert last == pytest.approx(before, rel=1e-3)
    warm_start(model, examples, tmp_path, steps=30, batch_size=4, learning_rate=3e-3, seed=0)
    assert loss() < before / 2
    assert not any(tmp_path.iterdir())


def test_padding_changes_nothing(tokenizer, tmp_path):
    short = encode(tokenizer, [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    long = encode(tokenizer, [{"role": "user", "content": "a " * 50}, {"role": "assistant", "content": "c"}])
    both = warm_start(
        build_model(tokenizer, seed=0), [short, long], tmp_path, steps=1, batch_size=2, learning_rate=1e-9, seed=0
    )
    each = [
        warm_start(
            build_model(tokenizer, seed=0), [example], tmp_path, steps=1, batch_size=1, learning_rate=1e-9, seed=0
        )
        for example in (short, long)
    ]
    weights = [sum(label != IGNORED for label in example["labels"]) for example in (short, long)]
    expected = sum(loss * weight for loss, weight in zip(each, weights, strict=True)) / sum(weights)
    assert both == pytest.approx(expected, rel=1e-3)
