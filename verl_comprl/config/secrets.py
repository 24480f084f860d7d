"""Secrets that a run's config names: the variable with an endpoint's key, and what it sets for the workers."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_comprl.record.redaction import is_secret, redact_also, text_redactor


def run_redactor(*configs: DictConfig) -> Callable[[str], str]:
    """Return a function that replaces the secrets of runs, of this process and of their workers, in plain text.

    The processes that it starts are told by a variable which others are secrets.

    Args:
        configs: Those of the runs, which need not have been checked.
    """
    for config in configs:
        redact_also(str(_setting(config, "comprl.extractor.endpoint.key_variable") or ""))
    variables = dict(os.environ)
    for number, config in enumerate(configs):
        # Under other names, since this process and the workers may have different keys in the same variable.
        variables |= {f"KEY_{number}_{name}": value for name, value in worker_secrets(config)}
    return text_redactor(variables)


def worker_secrets(config: DictConfig) -> Iterator[tuple[str, str]]:
    """Yield the variables with secrets that the config sets for the workers, with their values."""
    given = _setting(config, "ray_kwargs.ray_init.runtime_env.env_vars")
    for name, value in given.items() if isinstance(given, dict) else ():
        if is_secret(str(name), str(value)):
            yield str(name), str(value)


def _setting(config: DictConfig, key: str) -> Any:
    with suppress(OmegaConfBaseException):  # the check of the config says what is wrong
        found = OmegaConf.select(config, key)
        return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
    return None
