"""Reading of a model's files before it is started."""

import json
from pathlib import Path

import pytest
from foreign import CHATML, WITH_TOOLS, make_tokenizer, save_model
from omegaconf import OmegaConf

from verl_comprl.config.models import (
    bound_calls,
    bound_server,
    load_tokenizer,
    local_tokenizer,
    read_model_file,
    stop_tokens,
)


def test_a_file_of_a_model_that_is_missing_or_no_object_is_empty(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "generation_config.json").write_text("[1]")
    assert read_model_file(str(tmp_path), "config.json") == {"model_type": "llama"}
    assert read_model_file(str(tmp_path), "generation_config.json") == {}
    for path in (str(tmp_path / "nowhere"), "nobody/has-this-model", "hdfs://somewhere/model"):
        assert read_model_file(path, "config.json") == {}


@pytest.mark.parametrize(
    ("given", "longest", "length"), [(None, 262144, 150), (None, 128, 128), (None, None, 150), (900, 262144, 900)]
)
def test_a_server_holds_a_prompt_and_an_answer_and_no_more_unless_asked_to(
    tmp_path: Path, given: int | None, longest: int | None, length: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": longest}))
    rollout = {"prompt_length": 100, "response_length": 50, "max_model_len": given}
    model = OmegaConf.create({"model": {"path": str(tmp_path)}, "rollout": rollout})
    bound_server(model)
    assert model.rollout.max_model_len == length


@pytest.mark.parametrize(
    ("held", "prompt", "answer"), [(65536, 57344, 8192), (65535, 57343, 8192), (40960, 32768, 8192), (4096, 3072, 1024)]
)
def test_calls_are_no_longer_than_what_their_server_holds(
    held: int, prompt: int, answer: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The defaults, with models of different lengths: no prompt is refused, and an answer keeps a fourth at least."""
    rollout = OmegaConf.create({"prompt_length": 57344, "response_length": 8192, "max_model_len": held})
    bound_calls(rollout)
    assert (rollout.prompt_length, rollout.response_length) == (prompt, answer)
    said = f"holds {held} tokens, so that extractor.rollout.prompt_length={prompt} and response_length={answer} count"
    assert (said in capsys.readouterr().out) == (held < 65536)


def test_generation_stops_at_the_tokens_of_all_files(tmp_path: Path) -> None:
    model = str(save_model(tmp_path, make_tokenizer(eos="<|endoftext|>"), eos_token_id=3))
    assert stop_tokens(model, make_tokenizer(eos="<|endoftext|>")) == {0, 3}
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    assert stop_tokens(model, make_tokenizer(eos="<|endoftext|>")) == {0, 1, 2, 3}
    assert stop_tokens("nobody/has-this-model", make_tokenizer(eos=None)) == set()


def test_a_template_of_the_user_and_another_place_of_the_tokenizer_count(tmp_path: Path) -> None:
    save_model(tmp_path / "tokenizer", make_tokenizer(CHATML, pad=None))
    model = OmegaConf.create({"path": str(tmp_path / "model"), "tokenizer_path": str(tmp_path / "tokenizer")})
    tokenizer = load_tokenizer(model)
    assert tokenizer.chat_template == CHATML
    assert tokenizer.pad_token == tokenizer.eos_token, "verl's way with a tokenizer that has none"
    model.custom_chat_template = WITH_TOOLS
    assert load_tokenizer(model).chat_template == WITH_TOOLS


def test_a_tokenizer_is_looked_for_on_this_machine_only(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    model = save_model(tmp_path / "model", make_tokenizer())
    assert local_tokenizer(OmegaConf.create({"path": str(model)})).eos_token == "<|im_end|>"
    for path in (str(tmp_path / "empty"), "nobody/has-this-model", "hdfs://somewhere/model"):
        assert local_tokenizer(OmegaConf.create({"path": path})) is None
