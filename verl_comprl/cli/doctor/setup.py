"""Setup that is checked: this machine alone, or also the needs of a run with given arguments."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_comprl.compat import import_verl

if TYPE_CHECKING:
    from verl_comprl.config.tree import ComprlConfig

_PARTS = ("comprl.bank.", "comprl.embedder.", "comprl.extractor.endpoint.")
"""Settings that can be checked without the rest of a run."""


@dataclass
class Setup:
    """The arguments, the config that they make, and what earlier checks have found for later ones."""

    overrides: Sequence[str] = ()
    config_dir: Path | None = None
    config_name: str | None = None
    resources: dict[str, float] | None = None
    """Those of the existing Ray cluster, if there is one and it answers."""
    identity: dict[str, Any] | None = None
    """That of the embedder, if it could be loaded."""
    checked: Any = None
    """The config as the launcher completes it, if the settings are right."""

    @property
    def given(self) -> bool:
        """Whether there are arguments of a run."""
        return bool(self.overrides or self.config_name)

    @property
    def is_run(self) -> bool:
        """Whether they describe a whole run, and not only bank, embedder or endpoint."""
        parts_only = all(name.lstrip("+").startswith(_PARTS) for name in self.overrides)
        return bool(self.config_name) or not parts_only

    def sets(self, prefix: str) -> bool:
        """Return whether an argument sets something that begins with ``prefix``."""
        return any(name.lstrip("+").startswith(prefix) for name in self.overrides)

    @cached_property
    def config(self) -> Any:
        """The composed config.

        Raises:
            ConfigError: If it cannot be composed.
            IncompatibleVerlError: If verl, which has most of the settings, cannot be imported.
        """
        import_verl()
        from verl_comprl.config.composing import compose

        return compose(self.config_dir, self.config_name, self.overrides)

    @property
    def comprl(self) -> "ComprlConfig":
        """Our settings; defaults stand for those that are wrong, which the check of the settings reports."""
        return self._read[0]

    @property
    def is_wrong(self) -> bool:
        """Whether some of our settings are wrong."""
        return bool(self._read[1])

    @cached_property
    def _read(self) -> tuple["ComprlConfig", list[str]]:
        from verl_comprl.config.reading import read_settings

        return read_settings(self.config)
