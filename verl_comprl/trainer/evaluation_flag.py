"""Tells agent loops whether a prompt is trained on or evaluated."""

from typing import Any

from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from verl_comprl.rollout.episode import EVALUATION_KEY


class MarkedAgentLoops:
    """verl's agent loop manager; marks every prompt as training or evaluation."""

    def __init__(self, manager: Any) -> None:
        """Wrap verl's manager; all other attributes are the manager's."""
        self._manager = manager

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Submit prompts."""
        # The worker drops verl's own "validate" before an agent loop sees the row.
        tu.assign_non_tensor_data(prompts, EVALUATION_KEY, bool(tu.get(prompts, "validate", default=False)))
        self._manager.generate_sequences(prompts)

    def __getattr__(self, name: str) -> Any:
        """Return what verl's manager has."""
        return getattr(self._manager, name)
