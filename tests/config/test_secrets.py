"""Secrets that a run's config names."""

import os
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.config.secrets import run_redactor, worker_secrets


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRL_REDACT", "")
    monkeypatch.setenv("WANDB_API_KEY", "sk-of-this-shell")
    monkeypatch.setenv("LLM_ACCESS", "sk-of-the-endpoint")


def config(key_variable: str = "OPENAI_API_KEY", **variables: str) -> Any:
    return OmegaConf.create(
        {
            "comprl": {"extractor": {"endpoint": {"key_variable": key_variable}}},
            "ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": variables}}},
        }
    )


def test_keys_that_the_config_gives_to_the_workers_are_secrets_beside_this_process_s_own() -> None:
    one = config(WANDB_API_KEY="sk-of-the-workers", PYTHONPATH="/srv/code", PIN="${oc.env:MISSING,1234}")
    other = config(WANDB_API_KEY="sk-of-other-workers")
    assert dict(worker_secrets(one)) == {"WANDB_API_KEY": "sk-of-the-workers"}
    text = run_redactor(one, other)("sk-of-the-workers, sk-of-other-workers, sk-of-this-shell, /srv/code")
    assert text == "***, ***, ***, /srv/code"


def test_the_variable_with_the_endpoint_s_key_is_secret_whatever_its_name_here_and_in_processes_to_come() -> None:
    redact = run_redactor(config("LLM_ACCESS"))
    assert redact("Bearer sk-of-the-endpoint") == "Bearer ***"
    assert os.environ["COMPRL_REDACT"] == "LLM_ACCESS"


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"ray_kwargs": None, "comprl": 3},
        {"ray_kwargs": {"ray_init": {"runtime_env": {"env_vars": {"A_KEY": "${oc.env:MISSING}"}}}}},
        {"comprl": {"extractor": {"endpoint": {"key_variable": "${nowhere}"}}}},
    ],
)
def test_a_config_that_its_check_will_refuse_is_no_error(given: Any) -> None:
    config: Any = OmegaConf.create(given)
    assert run_redactor(config)("sk-of-this-shell") == "***"
