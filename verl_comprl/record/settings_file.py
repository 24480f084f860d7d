"""The file with a run's settings, ``config.yaml``."""

from pathlib import Path
from typing import Any

import yaml

from verl_comprl.display.first_line import first_line

SETTINGS = "config.yaml"


def read_settings(file: Path) -> Any:
    """Return what the file holds.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not YAML.
    """
    try:
        # Not OmegaConf, and not the loader in Python: they take half a second for a file of this size, whose
        # interpolations are resolved already.
        return yaml.load(file.read_bytes(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(f"{file} is not YAML: {first_line(error)}") from error
