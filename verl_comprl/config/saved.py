"""The resolved configuration kept in a run's folder, from which ``comprl evaluate`` starts."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_comprl.config.reading import leaves
from verl_comprl.files import write_atomically
from verl_comprl.record.redaction import SECRET_NAME, text_redactor
from verl_comprl.record.settings_file import SETTINGS as FILE
from verl_comprl.record.settings_file import read_settings

_VARIABLE = re.compile(r"oc\.env:\s*(\w+)")


def save_config(config: DictConfig, folder: Path, steps: int | None = None) -> None:
    """Write ``config`` into ``folder``, resolved except for secrets read from environment variables.

    Args:
        config: The run's config.
        folder: The run's folder.
        steps: Steps of the run if they are known: its config may leave them to the epochs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plain = _plain(config)
    if steps is not None:
        plain["trainer"]["total_training_steps"] = steps
    # A start that is killed meanwhile must not leave half of it: it says which checkpoints a run may continue.
    write_atomically(folder / FILE, OmegaConf.to_yaml(OmegaConf.create(plain)).encode())


def changed_settings(config: DictConfig, folder: Path) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which ``config`` differs from the one in ``folder``, with the value there and here.

    Args:
        config: The config of a run that is to continue in the folder.
        folder: The run's folder.

    Returns:
        Of the settings that both have, so that a version with more of them changes nothing; empty without a file.

    Raises:
        ValueError: If the file is not YAML.
    """
    if not (folder / FILE).is_file():
        return {}
    before, now = (
        dict(leaf for group, settings in each.items() for leaf in leaves(group, settings))
        for each in (read_settings(folder / FILE), _plain(config))
    )
    return {key: (before[key], now[key]) for key in before.keys() & now.keys() if before[key] != now[key]}


def _plain(config: DictConfig) -> Any:
    resolved = OmegaConf.to_container(config, resolve=True)
    return _without_secrets(resolved, OmegaConf.to_container(config, resolve=False), text_redactor())


def _without_secrets(resolved: Any, given: Any, redact: Callable[[str], str]) -> Any:
    """Return the resolved settings; as they were given where they name a secret, and without the values of others."""
    if isinstance(given, str) and any(map(SECRET_NAME.search, _VARIABLE.findall(given))):
        return given
    if isinstance(resolved, dict) and isinstance(given, dict):
        return {key: _without_secrets(value, given.get(key), redact) for key, value in resolved.items()}
    if isinstance(resolved, list) and isinstance(given, list):
        return [_without_secrets(*pair, redact) for pair in zip(resolved, given, strict=True)]
    return redact(resolved) if isinstance(resolved, str) else resolved


def load_config(folder: Path, overrides: Sequence[str] = ()) -> Any:
    """Return the configuration of the run in ``folder`` with ``overrides``.

    Args:
        folder: The run's folder.
        overrides: ``key=value``, for existing keys only.

    Raises:
        FileNotFoundError: If the folder has none.
        ValueError: If an override is not of that form or names an unknown key.
    """
    file = folder / FILE
    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: it is written when a run starts (comprl train)")
    config: Any = OmegaConf.load(file)
    OmegaConf.set_struct(config, True)
    for override in overrides:
        _, assigned, _ = override.partition("=")
        try:
            if not assigned:
                raise ValueError("it must be key=value")
            config = OmegaConf.merge(config, OmegaConf.from_dotlist([override]))
        except (OmegaConfBaseException, ValueError) as error:
            raise ValueError(f"{override!r} cannot be applied to {file}: {str(error).splitlines()[0]}") from error
    OmegaConf.set_struct(config, False)
    return config
