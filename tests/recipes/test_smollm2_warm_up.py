"""Examples that teach the formats: their tokens are those of a run, and what they show is well-formed."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from foreign import CHATML, NEXT_TURN_ENDS, WITH_DEFAULT_SYSTEM, WITH_TOOLS, make_tokenizer
from omegaconf import OmegaConf
from scripted import ScriptedServer, settings
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, DictConfigWrap

from env_adapters.parsing import extract_action, extract_tool_call
from recipes.mix_models.answers import answers
from recipes.mix_models.demonstrations import Demonstration, demonstrate
from recipes.smollm2 import warm_up
from recipes.smollm2.lake import LAKE, MAX_TURNS
from recipes.smollm2.stream import encode
from recipes.tiny_models import warm_start
from recipes.tiny_models.warm_start import IGNORED, Example
from verl_comprl.experience.updates.parsing import parse_answer, parse_distillation, parse_merge
from verl_comprl.extractor.calls import ExtractorCalls, Generation
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.extractor.prompts import answer_messages
from verl_comprl.rollout.conversation import Conversation

TEMPLATES = [CHATML, WITH_DEFAULT_SYSTEM, WITH_TOOLS]


@pytest.fixture(scope="module")
def played() -> list[Demonstration]:
    return list(demonstrate(12, seed=3, families=[LAKE], max_turns=MAX_TURNS))


class Loop(AgentLoopBase):
    """What a conversation needs of an agent loop."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        raise NotImplementedError


async def generated(tokenizer: Any, episode: Demonstration) -> Example:
    """Return what a run makes of an episode in which the model writes the turns of the demonstration."""
    texts = [message["content"] for message in episode.messages]
    roles = [message["role"] for message in episode.messages]
    server = ScriptedServer(tokenizer, [text for text, role in zip(texts, roles, strict=True) if role == "assistant"])
    surroundings: dict[str, Any] = {"server_manager": server, "processor": None, "dataset_cls": None}
    loop = Loop(
        # A token is a byte.
        trainer_config=settings(prompt_length=10_000, response_length=10_000),
        tokenizer=tokenizer,
        data_config=DictConfigWrap(OmegaConf.create({})),
        hf_model_type="llama",
        **surroundings,
    )
    conversation = Conversation(loop, "id", 10_000, episode.tools)
    first = roles.index("assistant")
    await conversation.begin(episode.messages[:first])
    for message in episode.messages[first:]:
        if message["role"] == "assistant":
            assert await conversation.generate({}, 1_000) == message["content"]
        else:
            assert await conversation.append(message)
    response = zip(conversation.response_ids, conversation.mask, strict=True)
    labels = [IGNORED] * len(conversation.prompt_ids) + [token if mask else IGNORED for token, mask in response]
    return {"input_ids": conversation.ids, "labels": labels}


@pytest.mark.parametrize("template", TEMPLATES)
async def test_an_encoded_episode_is_the_stream_of_a_run(played: list[Demonstration], template: str) -> None:
    tokenizer = make_tokenizer(template)
    assert sum(bool(turn.questions) for episode in played for turn in episode.turns) > 2
    for episode in played:
        assert encode(tokenizer, episode.messages, episode.tools) == await generated(tokenizer, episode)


@pytest.mark.parametrize("template", TEMPLATES)
async def test_an_encoded_answer_is_the_extractors_call(template: str) -> None:
    tokenizer: Any = make_tokenizer(template)
    (call,) = answers(random.Random(0), 1, [LAKE])
    lesson = LAKE.draw(random.Random(1)).text
    written = [*tokenizer.encode(call[-1]["content"]), tokenizer.eos_token_id]

    async def generate(_: Prompt) -> Generation:
        return Generation(written, [0.0] * len(written), 0)

    calls = ExtractorCalls(tokenizer, generate, max_prompt_tokens=10_000, max_operations=3)
    text, record = await calls.answer(lesson, LAKE.query, 1)
    example = encode(tokenizer, [*answer_messages(lesson, LAKE.query), call[-1]])
    assert example["input_ids"] == [*record.prompt_ids, *record.response_ids]
    assert example["labels"] == [IGNORED] * len(record.prompt_ids) + list(record.response_ids)
    assert text and text in call[-1]["content"]


def test_for_the_small_models_template_it_is_what_their_own_encoding_gives(tokenizer, episodes) -> None:
    for episode in episodes[:10]:
        example, other = (make(tokenizer, episode.messages, episode.tools) for make in (encode, warm_start.encode))
        # The other one has the newline after the last turn, too, which no model reads.
        assert example["input_ids"] == other["input_ids"][:-1] and example["labels"] == other["labels"][:-1]


def test_a_template_that_a_stream_cannot_be_made_with_is_refused(played: list[Demonstration]) -> None:
    long = next(episode for episode in played if len(episode.turns) > 1)
    with pytest.raises(ValueError, match="does not keep what was before message 4"):
        encode(make_tokenizer(NEXT_TURN_ENDS), long.messages[:5])


def test_everything_with_loss_is_well_formed() -> None:
    tokenizer: Any = make_tokenizer()
    examples = warm_up.make_examples(tokenizer, 60, seed=5)
    assert len(examples) == 60 and examples == warm_up.make_examples(tokenizer, 60, seed=5)
    kinds: dict[str, int] = dict.fromkeys(("action", "question", "distill", "merge", "answer"), 0)
    for example in examples:
        assert example["labels"][-1] == tokenizer.eos_token_id
        prompt = tokenizer.decode(example["input_ids"])
        written = tokenizer.decode([token for token in example["labels"] if token != IGNORED])
        for text in written.removesuffix("<|im_end|>").split("<|im_end|>"):
            if text.endswith("</action>"):
                kinds["action"] += extract_action(text) in ("left", "down", "right", "up")
            elif "<tool_call>" in text:
                name, arguments = extract_tool_call(text) or ("", {})
                assert name in prompt and arguments["query"]
                kinds["question"] += 1
            elif "You turn finished episodes" in prompt:
                kinds["distill"] += parse_distillation(text, max_operations=1, listed=2).format_ok
            elif "You keep the experience" in prompt:
                kinds["merge"] += not parse_merge(text, listed=4).errors
            else:
                kinds["answer"] += parse_answer(text) is not None
    assert [kinds[kind] for kind in ("distill", "merge", "answer")] == [24, 15, 6]
    assert kinds["question"] > 0 and kinds["action"] > 20


def test_actions_and_lessons_do_not_depend_on_what_is_good() -> None:
    episodes = list(demonstrate(300, seed=4, families=[LAKE], max_turns=MAX_TURNS))
    actions = [extract_action(turn.response) for episode in episodes for turn in episode.turns]
    shares = [actions.count(action) / len(actions) for action in ("left", "down", "right", "up")]
    assert shares == pytest.approx([1 / 14, 6 / 14, 6 / 14, 1 / 14], abs=0.03)
    # Whatever the map: where the first move leads into a hole it is made as often.
    fatal = [episode.turns[0].response for episode in episodes if len(episode.turns) == 1]
    assert len(fatal) > 30 and sum("down" in response for response in fatal) / len(fatal) == pytest.approx(0.5, abs=0.2)
    assert 0.05 < sum(episode.success for episode in episodes) / len(episodes) < 0.2


def test_teaching_changes_the_upper_layers_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tokenizer = make_tokenizer(pad="<|im_end|>")
    tokenizer.save_pretrained(tmp_path)
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    sizes |= {"vocab_size": len(tokenizer), "num_hidden_layers": 2, "pad_token_id": tokenizer.pad_token_id}
    config = LlamaConfig(tie_word_embeddings=True, **sizes)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    before = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    monkeypatch.setattr(warm_up, "STEPS", 20)
    monkeypatch.setattr(warm_up, "LEARNING_RATE", 0.05)
    monkeypatch.setattr(warm_up, "FROZEN_LAYERS", 1)
    warm_up.teach(tmp_path)
    after = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert after.dtype == torch.float32
    changed = {name for name, tensor in after.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {name for name in before if name.startswith("model.layers.1.")}
    losses = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines() if "loss per token" in line]
    assert len(losses) == 10 and losses[-1] < losses[0]
