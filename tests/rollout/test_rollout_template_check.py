"""Models whose tokenizer or template cannot carry an episode are named before anything starts."""

from pathlib import Path
from typing import Any

import pytest
from foreign import ALTERNATING, CHATML, NEXT_TURN_ENDS, WITH_TOOLS, WITHOUT_END, make_tokenizer, save_model
from omegaconf import OmegaConf

from verl_comprl.config.reading import ConfigError
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.config import QueueConfig
from verl_comprl.rollout.template_check import check_templates

SETTINGS = ComprlConfig(bank=BankConfig(path="bank", collection="c"), queue=QueueConfig(folder="queue"))


def check(actor: Path | str, extractor: Path | str, settings: ComprlConfig = SETTINGS, **changes: Any) -> list[str]:
    config = OmegaConf.create(
        {
            "data": {},
            "actor_rollout_ref": {"model": {"path": str(actor)}, "rollout": {"multi_turn": {"format": "hermes"}}},
            "extractor": {"model": {"path": str(extractor)}},
        }
    )
    for key, value in changes.items():
        OmegaConf.update(config, key.replace("__", "."), value, force_add=True)
    try:
        check_templates(config, settings)
    except ConfigError as error:
        return str(error).splitlines()
    return []


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return save_model(tmp_path / "good", make_tokenizer())


@pytest.mark.parametrize("template", [CHATML, WITH_TOOLS])
@pytest.mark.parametrize("pad", [None, "<|endoftext|>"])
def test_templates_with_and_without_tools_and_tokenizers_without_a_pad_token_pass(
    tmp_path: Path, template: str, pad: str | None
) -> None:
    model = save_model(tmp_path / "model", make_tokenizer(template, pad=pad))
    assert check(model, model) == []


@pytest.mark.parametrize("place", ["actor", "extractor"])
@pytest.mark.parametrize(
    ("tokenizer", "line"),
    [
        (make_tokenizer(None), "has no chat template; use an instruct model or set {}.model.custom_chat_template"),
        (make_tokenizer(eos=None), "its tokenizer has no end token; set eos_token in its tokenizer_config.json"),
        (
            make_tokenizer(eos="<|endoftext|>"),
            "its chat template ends a turn with '<|im_end|>', but generation stops at <|endoftext|>; set eos_token in "
            "its tokenizer_config.json to '<|im_end|>'",
        ),
        (make_tokenizer(WITHOUT_END), "no special token ends an assistant's turn in its chat template"),
    ],
)
def test_one_line_says_what_is_wrong_and_what_to_set(good: Path, tmp_path: Path, place: str, tokenizer, line) -> None:
    bad = save_model(tmp_path / "bad", tokenizer)
    subtree = "actor_rollout_ref" if place == "actor" else "extractor"
    (message,) = check(bad, good) if place == "actor" else check(good, bad)
    assert message.startswith(f"{subtree}.model.path={bad}") and line.format(subtree) in message


@pytest.mark.parametrize("name", ["generation_config.json", "config.json"])
def test_a_stop_token_may_stand_in_another_file(tmp_path: Path, name: str) -> None:
    model = save_model(tmp_path / "model", make_tokenizer(eos="<|endoftext|>"))
    (model / name).write_text('{"model_type": "llama", "eos_token_id": [0, 2]}')
    assert check(model, model) == []


def test_a_template_whose_next_turn_ends_a_turn(tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", make_tokenizer(NEXT_TURN_ENDS, eos="<|im_start|>"))
    assert check(model, model) == []


def test_an_actor_needs_more_of_a_template_than_an_extractor(good: Path, tmp_path: Path) -> None:
    model = save_model(tmp_path / "model", make_tokenizer(ALTERNATING, eos="</s>"))
    assert check(good, model) == []
    (message,) = check(model, good)
    assert "cannot render an episode of system, user, assistant and user messages (roles must alternate)" in message
    assert message.endswith("set actor_rollout_ref.model.custom_chat_template to one that can")
    assert check(model, good, actor_rollout_ref__model__custom_chat_template=CHATML.replace("<|im_end|>", "</s>")) == []


def test_a_template_that_raises_is_one_line(good: Path, tmp_path: Path) -> None:
    raising = "{{ raise_exception('System role not supported') }}"
    model = save_model(tmp_path / "model", make_tokenizer(raising))
    (message,) = check(good, model)
    assert "cannot render a system and a user message (System role not supported)" in message


def test_the_parser_must_read_what_the_description_asks_for(tmp_path: Path) -> None:
    for template, expected in ((CHATML, 1), (WITH_TOOLS, 0)):
        model = save_model(tmp_path / f"model{expected}", make_tokenizer(template))
        found = check(model, model, actor_rollout_ref__rollout__multi_turn__format="gpt-oss")
        assert len(found) == expected
        assert all(line.startswith("actor_rollout_ref.rollout.multi_turn.format=gpt-oss, but") for line in found)


def test_without_experience_the_extractor_is_not_looked_at(good: Path, tmp_path: Path) -> None:
    bad = save_model(tmp_path / "bad", make_tokenizer(None))
    assert check(good, bad, SETTINGS.model_copy(update={"experience": False})) == []


def test_a_model_without_tokenizer_here_is_not_checked(good: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", "nobody/has-this-model", "hdfs://somewhere/model"):
        assert check(good, path) == []
        assert check(path, good) == []
