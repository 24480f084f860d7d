"""Runs whose extractor is an endpoint or the actor's server: what is not needed, and mistakes in one line each."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.slots import needed_slots
from verl_comprl.config.validation import ConfigError, check_cluster_slots, validate

KEY = "COMPRL_TEST_KEY"


@pytest.fixture
def frozen(config: DictConfig, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    """A good config without an extractor's model; an endpoint until a test says otherwise."""
    monkeypatch.setenv(KEY, "sk-secret")
    config.extractor.model.path = None
    config.extractor.actor.ppo_micro_batch_size_per_gpu = 5  # divides no batch, but there is none
    config.comprl.extractor.update(backend="endpoint", train=False)
    config.comprl.extractor.endpoint.update(url="http://127.0.0.1:8000/v1", model="teacher", key_variable=KEY)
    config.actor_rollout_ref.rollout.max_model_len = 2048
    config.extractor.rollout.update(prompt_length=1536, response_length=512)
    return config


def mistakes(config: DictConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        validate(config)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("backend", ["endpoint", "actor"])
def test_no_model_and_no_device_of_its_own(frozen: DictConfig, backend: str) -> None:
    frozen.comprl.extractor.backend = backend
    validate(frozen)
    assert needed_slots(frozen) == 8
    check_cluster_slots(frozen, {"GPU": 8, "CPU": 64})
    frozen.comprl.extractor.backend = "own"
    assert needed_slots(frozen) == 9


@pytest.mark.parametrize("backend", ["endpoint", "actor"])
def test_it_cannot_be_trained(frozen: DictConfig, backend: str) -> None:
    frozen.comprl.extractor.update(backend=backend, train=True)
    (message,) = mistakes(frozen)
    assert message.startswith(f"comprl.extractor.train=true needs comprl.extractor.backend=own, but it is {backend}")
    assert "choose arm=static_online or arm=offline" in message


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("url", "", "url is missing; give the address up to and with the version"),
        ("url", "api.openai.com/v1", "url='api.openai.com/v1' must start with http:// or https://"),
        ("model", "", "model is missing; give the endpoint's name of its model"),
        ("timeout", 0, "timeout=0 is not allowed; it must be a number greater than 0"),
        ("retries", -1, "retries=-1 is not allowed"),
        ("max_concurrent", 0, "max_concurrent=0 is not allowed"),
        (
            "length_parameter",
            "n",
            "length_parameter='n' is not allowed; it must be one of max_tokens, max_completion_tok",
        ),
    ],
)
def test_mistakes_in_the_endpoint(frozen: DictConfig, name: str, value: Any, line: str) -> None:
    frozen.comprl.extractor.endpoint[name] = value
    assert mistakes(frozen)[0].startswith(f"comprl.extractor.endpoint.{line}")


def test_a_missing_key_is_named_by_its_variable(frozen: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY)
    (message,) = mistakes(frozen)
    assert message.startswith(
        f"comprl.extractor.endpoint.key_variable={KEY}, but there is no such environment variable"
    )
    frozen.comprl.extractor.endpoint.key_variable = ""  # a local server without a key
    validate(frozen)


def test_the_key_itself_is_in_no_setting(frozen: DictConfig) -> None:
    assert "sk-secret" not in OmegaConf.to_yaml(frozen, resolve=True) + repr(validate(frozen))


def test_the_longest_call_must_fit_into_the_actors_server(frozen: DictConfig) -> None:
    frozen.comprl.extractor.backend = "actor"
    frozen.extractor.rollout.prompt_length = 1537
    (message,) = mistakes(frozen)
    assert "prompt_length=1537 + extractor.rollout.response_length=512 are more than the 2048 tokens" in message
    # Without a setting it is the model's own limit.
    frozen.actor_rollout_ref.rollout.max_model_len = None
    validate(frozen)
    (Path(frozen.actor_rollout_ref.model.path) / "config.json").write_text('{"max_position_embeddings": 1024}')
    assert "the 1024 tokens of the actor's server" in mistakes(frozen)[0]


def test_the_actors_servers_do_not_make_room_for_a_reward_model_while_they_answer(frozen: DictConfig) -> None:
    frozen.reward.reward_model.update(enable=True, enable_resource_pool=False)
    validate(frozen)  # an endpoint
    frozen.comprl.extractor.backend = "actor"
    (message,) = mistakes(frozen)
    assert message.startswith("reward.reward_model.enable_resource_pool=false cannot be combined with")
    frozen.reward.reward_model.enable_resource_pool = True
    validate(frozen)


def test_a_baseline_needs_no_key(frozen: DictConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY)
    frozen.comprl.experience = False
    validate(frozen)
