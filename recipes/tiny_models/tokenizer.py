"""Trains the tokenizer of a tiny model: byte-level BPE on scripted texts, with a ChatML template.

Owns the special tokens, the template and the default splitting rules. A recipe trains one for both of its models.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
Conversation = tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]
"""Messages and tool schemas."""

_SPECIAL_TOKENS = [PAD, START, END]

# Pieces that BPE may merge within but not across; they are larger than words, so that frequent phrases become single
# tokens and episodes stay short. A newline is a piece of its own: verl's token builder needs it as one token, and a
# turn then encodes the same alone as within a conversation. A row of the map is one piece: its symbols have fixed
# positions, which the single token of a common row encodes directly.
PIECES = "|".join(
    [
        r"^(?:\S )+\S\n",  # row of single symbols
        r"\n",
        r"</?[a-z_]+>",
        r'[]\[{}", ]*"[a-z_]+": ?["{\[]*',  # JSON key, from the end of the value before it to the start of its own
        r'[]\[{}:, ]*"[]\[{}":, ]*',  # other JSON punctuation around a quote
        r'(?: [.<]|[^\n<"0-9.])+',  # phrase; what follows a space is a symbol of the legend, not an end or a tag
        r"[0-9]",
        r"\.",
        r".",
    ]
)

CHAT_TEMPLATE = """\
{%- macro call_format() -%}
You can call these functions, described as one JSON schema per line inside <tools> and </tools>:
<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools>
To call one, write its name and arguments as one JSON object inside <tool_call> and </tool_call>:
<tool_call>
{"name": "...", "arguments": {"...": "..."}}
</tool_call>
{%- endmacro -%}
{%- for message in messages -%}
{%- if loop.first and tools and message.role != 'system' -%}
{{ '<|im_start|>system\\n' + call_format() + '<|im_end|>\\n' }}
{%- endif -%}
{%- set content = message.content or '' -%}
{%- if message.role == 'tool' -%}
{{ '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
{%- else -%}
{{ '<|im_start|>' + message.role + '\\n' + content }}
{%- endif -%}
{%- if loop.first and tools and message.role == 'system' -%}
{{ '\\n\\n' + call_format() }}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{%- set arguments = call.function.arguments -%}
{{ '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- arguments if arguments is string else arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor -%}
{{ '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{ '<|im_start|>assistant\\n' }}
{%- endif -%}"""
"""Renders each message independently: the text of a conversation is a prefix of the text of a longer one."""


def train_tokenizer(
    conversations: Iterable[Conversation], vocab_size: int = 2560, pieces: str = PIECES
) -> PreTrainedTokenizerFast:
    """Train a tokenizer on conversations as the template renders them.

    Args:
        conversations: Pairs of messages and tool schemas.
        vocab_size: Upper limit for the number of tokens, bytes and special tokens included.
        pieces: Regular expression of the pieces that BPE may merge within but not across.

    Returns:
        The tokenizer; ``<|im_end|>`` ends a turn and a generation.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        _plain_texts(conversations),
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            min_frequency=2,
            special_tokens=_SPECIAL_TOKENS,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return _with_template(tokenizer)


def _plain_texts(conversations: Iterable[Conversation]) -> Iterator[str]:
    """Render, then split at the special tokens, so that BPE does not learn them as text."""
    empty = Tokenizer(models.BPE())
    empty.add_special_tokens(_SPECIAL_TOKENS)
    renderer = _with_template(empty)
    for messages, tools in conversations:
        rendered = str(renderer.apply_chat_template(messages, tools=tools or None, tokenize=False))
        yield from re.split("|".join(map(re.escape, _SPECIAL_TOKENS)), rendered)


def _with_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
