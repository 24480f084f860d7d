"""Compares the uses of a step with the outcomes of its free half.

Owns both until the step is closed. How an entry that does worse is dealt with is decided in ``bank``.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from verl_comprl.experience import ExperienceBank
from verl_comprl.experience.schema import DistillationRequest

FREE_STEPS = 2
"""Steps whose free outcomes a use is compared with: its own and the one before. Further ones are of an actor that had
learned less; where there is no free half any more, uses are not compared."""

LEAST_FREE = 4
"""Outcomes of a task's free half in these steps below which its success counts as unknown."""


class FreeHalf:
    """Outcomes of the free half in the latest steps, and the uses of the step that is not closed yet."""

    def __init__(self) -> None:
        """Start empty."""
        self._steps: deque[dict[str, list[bool]]] = deque([{}], maxlen=FREE_STEPS)
        self._uses: list[tuple[tuple[str, ...], str, bool]] = []

    @property
    def outcomes(self) -> dict[str, list[bool]]:
        """Outcomes of the latest steps, by task."""
        tasks = {task for step in self._steps for task in step}
        return {task: [outcome for step in self._steps for outcome in step.get(task, ())] for task in tasks}

    def add(self, task: str, success: bool) -> None:
        """Add the outcome of a free episode."""
        self._steps[-1].setdefault(task, []).append(success)

    def add_use(self, request: DistillationRequest) -> None:
        """Add a guided episode, whose outcome the bank has counted."""
        self._uses.append((request.experience_ids, request.task, request.outcome.success))

    def close_step(self, bank: ExperienceBank) -> None:
        """Compare the uses of the step with its free half, and begin the next step.

        Not at once: successes end first, so that the free half's success is too high until all its episodes have ended.
        """
        rates = {task: sum(found) / len(found) for task, found in self.outcomes.items() if len(found) >= LEAST_FREE}
        for ids, task, success in self._uses:
            if task in rates:
                bank.record_comparison(ids[:1], success, rates[task], task=task)
                bank.record_comparison(ids[1:], success, rates[task], task=task, asked=True)
        self._uses.clear()
        self._steps.append({})

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, JSON-compatible."""
        return {"steps": list(self._steps), "uses": self._uses}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state with what :meth:`state` returned."""
        self._steps = deque(state["steps"], maxlen=FREE_STEPS)
        self._uses = [(tuple(ids), task, success) for ids, task, success in state["uses"]]
