"""The resolved configuration kept in a run's folder, from which ``comprl evaluate`` starts."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from verl_comprl.config.groups import misplaced
from verl_comprl.config.reading import leaves
from verl_comprl.display.first_line import first_line
from verl_comprl.files import write_atomically
from verl_comprl.nearest import did_you_mean
from verl_comprl.record.redaction import REDACTED, is_secret, is_secret_name, text_redactor
from verl_comprl.record.settings_file import SETTINGS as FILE
from verl_comprl.record.settings_file import read_settings

_VARIABLE = re.compile(r"oc\.env:\s*(\w+)")

_IN_URL = re.compile(r"(?<=://)([^/?#\s:@]*:)[^/?#\s]+(?=@)|((?<=http://)|(?<=https://))[^/?#\s:@]+(?=@)", re.I)
"""A password in a URL, or what stands alone in the place of user and password; off the web, that is a user."""
_IN_QUERY = re.compile(r"(?<=[?&])([^=&#\s]+)=[^&#\s]+")

_REFERENCE = re.compile(r"(\\*)\$\{")


def save_config(config: DictConfig, folder: Path, steps: int | None = None) -> None:
    """Write ``config`` into ``folder``, resolved and without secrets.

    One that is read from an environment variable stays a reference to it, and one that is set in ``env_vars``, for the
    workers, becomes one. Those of this process's variables, and passwords and keys in URLs, are replaced by ``***``.

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


def tracked_config(config: DictConfig) -> dict[str, Any]:
    """Return what a run's metrics backends get: the settings as :func:`save_config` writes them.

    Those with which verl starts a backend are as they were given, or it could not be started.
    """
    plain = _plain(config)
    plain["trainer"] |= {
        name: OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
        for name in ("wandb_proxy", "rl_insight")
        if (value := config.trainer.get(name))
    }
    return plain


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
    redact = text_redactor()

    def clean(text: str) -> str:
        text = _IN_URL.sub(lambda found: f"{found[1] or ''}{REDACTED}", redact(text))
        return _IN_QUERY.sub(lambda found: f"{found[1]}={REDACTED}" if is_secret_name(found[1]) else found[0], text)

    resolved = OmegaConf.to_container(config, resolve=True)
    return _without_secrets(resolved, OmegaConf.to_container(config, resolve=False), clean)


def _without_secrets(resolved: Any, given: Any, clean: Callable[[str], str], *, of_workers: bool = False) -> Any:
    """Return the resolved settings; as they were given where they name a secret, and without the values of others.

    Args:
        resolved: A setting, or settings.
        given: The same with references to others and to variables.
        clean: Removes secrets from a text.
        of_workers: Whether these are environment variables of the workers.
    """
    if isinstance(given, str) and any(map(is_secret_name, _VARIABLE.findall(given))):
        return given
    if isinstance(resolved, dict):
        given = given if isinstance(given, dict) else {}  # a reference to settings elsewhere
        return {
            # A variable that is no secret is kept, since an evaluation starts its workers with it.
            key: f"${{oc.env:{key},''}}"
            if of_workers and is_secret(str(key), str(value))
            else _without_secrets(value, given.get(key), clean, of_workers=of_workers or key == "env_vars")
            for key, value in resolved.items()
        }
    if isinstance(resolved, list):
        given = given if isinstance(given, list) else [None] * len(resolved)
        return [_without_secrets(*pair, clean, of_workers=of_workers) for pair in zip(resolved, given, strict=True)]
    return _escaped(clean(resolved)) if isinstance(resolved, str) else resolved


def _escaped(text: str) -> str:
    """Return how a setting is written whose text looks as if it referred to another: loading it gives the text."""
    return _REFERENCE.sub(lambda found: rf"{found[1] * 2}\${{", text)


def load_config(folder: Path, overrides: Sequence[str] = (), options: Iterable[str] = ()) -> Any:
    """Return the configuration of the run in ``folder`` with ``overrides``.

    Args:
        folder: The run's folder.
        overrides: ``key=value``, for existing keys only.
        options: Options of the command, which may have been meant by a key that does not exist.

    Raises:
        FileNotFoundError: If the folder has none.
        ValueError: If an override is not of that form, names an unknown key, or gives a group for a value or a value
            for a group.
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
            given = OmegaConf.from_dotlist([override])
            plain: list[Any] = [OmegaConf.to_container(each) for each in (given, config)]
            if wrong := next(misplaced(*plain), None):
                raise ValueError(wrong)
            config = OmegaConf.merge(config, given)
        except (ConfigKeyError, ConfigAttributeError) as error:
            raise ValueError(f"{override!r} cannot be applied to {file}: {_unknown(error, config, options)}") from error
        except (OmegaConfBaseException, ValueError) as error:
            raise ValueError(f"{override!r} cannot be applied to {file}: {first_line(error)}") from error
    OmegaConf.set_struct(config, False)
    return config


def _unknown(error: OmegaConfBaseException, config: Any, options: Iterable[str]) -> str:
    """Return the key that does not exist, with the nearest of its group; of all settings if it names no group."""
    known = [str(name) for name in error.parent_node or ()]
    if error.full_key == str(error.key):
        plain: Any = OmegaConf.to_container(config)
        known += [*(leaf for group, value in plain.items() for leaf, _ in leaves(str(group), value)), *options]
    return f"{error.full_key} is unknown; {did_you_mean(str(error.key), known)}".rstrip("; ")
