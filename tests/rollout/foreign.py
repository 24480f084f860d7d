"""Tiny tokenizers with chat templates as other models have them, none of which is like the small models'."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""Tools are ignored."""

WITH_DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
) + CHATML
"""As SmolLM2 has it: a conversation without a system message gets one."""

WITH_TOOLS = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + CHATML

ALTERNATING = (
    "{% for message in messages if message['role'] != 'system' %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{{ '[' + message['role'] + ']' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '</s>' }}{% endif %}{% endfor %}"
)
"""Refuses two user messages in a row."""

NEXT_TURN_ENDS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>' }}{% endif %}"
)
"""The next turn's first token ends a turn."""

WITHOUT_END = "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"


def make_tokenizer(
    template: str | None = CHATML, *, eos: str | None = "<|im_end|>", pad: str | None = None
) -> PreTrainedTokenizerFast:
    """Return a tokenizer of single bytes."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "</s>"]
    vocabulary = {token: index for index, token in enumerate([*specials, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token=pad, chat_template=template, bos_token="<|im_start|>"
    )


def save_model(folder: Path, tokenizer: PreTrainedTokenizerFast, **config: object) -> Path:
    """Write a model folder that has a tokenizer and a config, and no weights."""
    import json

    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": "llama", **config}))
    return folder
