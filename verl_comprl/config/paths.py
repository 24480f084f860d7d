"""Makes the files and folders of a config absolute."""

import os
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

_WRITTEN = ("trainer.default_local_dir", "comprl.bank.path", "comprl.queue.folder")
"""Folders that a run makes."""
_READ = (
    "actor_rollout_ref.model.path",
    "actor_rollout_ref.model.tokenizer_path",
    "extractor.model.path",
    "extractor.model.tokenizer_path",
    "comprl.initial_bank",
    "trainer.resume_from_path",
    "data.train_files",
    "data.val_files",
)
"""Settings that are a path, or the name of something elsewhere."""
_NAMED = ("comprl.embedder.model",)
"""Paths that a bank keeps and compares, so that a relative one stays as it is."""


def use_absolute_paths(config: DictConfig) -> None:
    """Name files and folders so that all processes find them.

    A shell leaves the ``~`` of ``key=~/folder`` as it is, and most of verl takes it for a name. Processes of a running
    cluster have another working directory.
    """
    for key in (*_WRITTEN, *_READ, *_NAMED):
        given = OmegaConf.select(config, key)
        if not given:
            continue
        named: Any = [_absolute(path, key) for path in listed(given)]
        if named != listed(given):  # otherwise an interpolation stays one
            OmegaConf.update(config, key, named[0] if isinstance(given, str) else named)


def listed(files: Any) -> list[str]:
    """Return the files of a setting that may be one, several or none."""
    return [files] if isinstance(files, str) else list(files or [])


def _absolute(given: str, key: str) -> str:
    path = Path(os.path.expanduser(given))
    if path.is_absolute() or key in _WRITTEN or (key in _READ and path.exists()):
        return str(path.absolute())
    return given
