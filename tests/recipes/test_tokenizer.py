"""The tokenizer against verl's own consumers of it: the rollout's token builder and the SFT dataset."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from verl.utils.dataset.multiturn_sft_dataset import MultiTurnSFTDataset
from verl.utils.tokenizer.continuous_token import QwenContinuousTokenBuilder

from recipes.tiny_models.tokenizer import END, PAD
from recipes.tiny_models.warm_start import IGNORED, encode
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA


def _render(tokenizer, messages, tools, **kwargs):
    return tokenizer.apply_chat_template(messages, tools=tools or None, tokenize=True, return_dict=False, **kwargs)


def _consulting(episodes):
    return next(episode for episode in episodes if any(message["role"] == "tool" for message in episode.messages))


def test_special_tokens_and_newline_are_single_tokens(tokenizer):
    assert tokenizer.eos_token == END and tokenizer.pad_token == PAD
    assert len(tokenizer.encode(f"{END}\n")) == 2
    assert tokenizer.decode(tokenizer.encode(END), skip_special_tokens=True) == ""


@settings(max_examples=50)
@given(text=st.text(st.characters(codec="utf-8"), max_size=60))
def test_any_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_common_rows_of_the_map_are_single_tokens(tokenizer):
    assert len(tokenizer.encode("~ ~ ~ ~ ~ ~ ~ ~ ~\n" * 2 + "~ ~ ~ . @ . ~ ~ ~\n")) == 3


def test_episodes_are_short(tokenizer, episodes):
    assert max(len(_render(tokenizer, episode.messages, episode.tools)) for episode in episodes) <= 1600


def test_incremental_tokens_of_an_episode_are_those_of_the_whole(tokenizer, episodes):
    # What a rollout does: the model's turns are appended as generated, everything between comes from the builder.
    episode = _consulting(episodes)
    builder = QwenContinuousTokenBuilder(tokenizer)
    first = next(index for index, message in enumerate(episode.messages) if message["role"] == "assistant")
    ids = builder.build_initial_tokens(episode.messages[:first], tools=episode.tools)
    for index in range(first, len(episode.messages)):
        message = episode.messages[index]
        if message["role"] == "assistant":
            generated = tokenizer.encode(message["content"] + END)
            ids = builder.merge_assistant_tokens(ids, generated).token_ids
        else:
            before = episode.messages[:index]
            ids = builder.merge_context_tokens(before, [*before, message], ids, tools=episode.tools).token_ids
    assert episode.messages[-1]["role"] == "assistant"
    newline = tokenizer.encode("\n")
    assert ids + newline == _render(tokenizer, episode.messages, episode.tools)


@pytest.mark.parametrize("guided", [True, False])
def test_training_tokens_are_those_of_verls_sft_dataset(tokenizer, episodes, tmp_path, guided):
    chosen = [episode for episode in episodes if bool(episode.tools) is guided][:5]
    rows = [{"messages": episode.messages, "tools": episode.tools} for episode in chosen]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data.parquet")
    config = DictConfig({"pad_mode": "no_padding", "max_length": 4096})
    dataset = MultiTurnSFTDataset([str(tmp_path / "data.parquet")], tokenizer, config)
    newline = tokenizer.encode("\n")[0]
    for index, episode in enumerate(chosen):
        example, theirs = encode(tokenizer, episode.messages, episode.tools), dataset[index]
        assert example["input_ids"] == theirs["input_ids"].tolist()
        # verl also trains on the newline after the end of a turn, which is never generated; we do not.
        after_end = [
            token == newline and position > 0 and example["input_ids"][position - 1] == tokenizer.eos_token_id
            for position, token in enumerate(example["input_ids"])
        ]
        expected = [bool(mask) and not skip for mask, skip in zip(theirs["loss_mask"].tolist(), after_end, strict=True)]
        assert [label != IGNORED for label in example["labels"]] == expected


def test_tools_are_shown_in_the_system_message_or_in_one_of_their_own(tokenizer):
    user = {"role": "user", "content": "go"}
    schema = [SEARCH_AND_ASK_SCHEMA]
    alone = tokenizer.apply_chat_template([user], tools=schema, tokenize=False)
    joined = tokenizer.apply_chat_template([{"role": "system", "content": "rules"}, user], tools=schema, tokenize=False)
    assert alone.startswith("<|im_start|>system\nYou can call") and '"name": "search_and_ask"' in alone
    assert joined.startswith("<|im_start|>system\nrules\n\nYou can call")
    assert joined.count("<|im_start|>system") == alone.count("<|im_start|>system") == 1
    assert "search_and_ask" not in tokenizer.apply_chat_template([user], tokenize=False)


@pytest.mark.parametrize("arguments", [{"query": "where?"}, '{"query": "where?"}'])
def test_structured_tool_calls_read_like_written_ones(tokenizer, arguments):
    call = {"type": "function", "function": {"name": "search_and_ask", "arguments": arguments}}
    text = tokenizer.apply_chat_template(
        [{"role": "assistant", "content": "<think>Hm.</think>", "tool_calls": [call]}], tokenize=False
    )
    assert text == (
        "<|im_start|>assistant\n<think>Hm.</think>\n<tool_call>\n"
        '{"name": "search_and_ask", "arguments": {"query": "where?"}}\n</tool_call><|im_end|>\n'
    )


def test_training_is_reproducible(episodes):
    from recipes.tiny_models.tokenizer import train_tokenizer

    corpus = [(episode.messages, episode.tools) for episode in episodes[:20]]
    assert train_tokenizer(corpus, 600).get_vocab() == train_tokenizer(corpus, 600).get_vocab()
