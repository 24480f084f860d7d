"""From finished episodes to rewards of the generation records they used.

An outcome rewards every record that the episode read. With ``relative`` the free half of the same prompt is the
baseline, which is known only when its rollouts have ended: until then a use waits here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from verl_comprl.algorithm.utility import outcome_reward, relative_reward
from verl_comprl.extractor.buffer import TrainingBuffer

WAIT_STEPS = 2
"""Steps after which a use no longer waits for the free half of its prompt, all of whose rollouts may have failed."""


@dataclass(frozen=True)
class _Use:
    record_id: str
    prompt: str
    task: str
    success: bool
    judged: float
    step: int


class Credit:
    """Outcome → use of a record, at once or compared with the free half."""

    def __init__(self, buffer: TrainingBuffer, *, relative: bool) -> None:
        """Hand rewards on to ``buffer``.

        Args:
            buffer: Knows which records there are.
            relative: Reward is the outcome minus the mean outcome of the prompt's free half.
        """
        self._buffer = buffer
        self._relative = relative
        self._waiting: list[_Use] = []
        self._free: dict[str, list[bool]] = {}
        self._free_step: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of uses that wait for the free half of their prompt."""
        return len(self._waiting)

    def record_outcome(
        self, record_id: str, prompt: str, task: str, success: bool, step: int, *, judged: float = 0.0
    ) -> None:
        """Note that an episode used a record.

        Args:
            record_id: Generation record of the text.
            prompt: The episode's prompt, whose free half it is compared with.
            task: The episode's task.
            success: Its outcome.
            step: Actor step of the episode.
            judged: ``s`` of Eq. 8, which is added to the reward.
        """
        if self._relative:
            self._waiting.append(_Use(record_id, prompt, task, success, judged, step))
        else:
            self._buffer.record_reward(record_id, judged + outcome_reward(success))

    def record_free_outcome(self, prompt: str, success: bool, step: int) -> None:
        """Note the outcome of a rollout of a prompt's free half."""
        if self._relative:
            self._free.setdefault(prompt, []).append(success)
            self._free_step[prompt] = step

    def flush_pending(self, step: int, task_outcomes: Mapping[str, Any]) -> None:
        """Reward the uses whose prompt's free half is known; those that have waited too long, by their task's.

        Args:
            step: Actor step that is closed.
            task_outcomes: Latest outcomes of the free half, by task.
        """
        waiting: list[_Use] = []
        for use in self._waiting:
            outcomes = self._free.get(use.prompt)
            if outcomes is None and step - use.step < WAIT_STEPS:
                waiting.append(use)
            else:
                compared = outcomes or list(task_outcomes.get(use.task, ()))
                self._buffer.record_reward(use.record_id, use.judged + relative_reward(use.success, compared))
        self._waiting = waiting
        # Not at once: with an asynchronous trainer, rollouts of one prompt end in different steps.
        for prompt in [prompt for prompt, seen in self._free_step.items() if step - seen >= WAIT_STEPS]:
            del self._free[prompt], self._free_step[prompt]

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps, as JSON takes it."""
        return {"waiting": [asdict(use) for use in self._waiting], "free": self._free, "free_step": self._free_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what :meth:`state` returned."""
        self._waiting = [_Use(**use) for use in state["waiting"]]
        self._free = {prompt: list(outcomes) for prompt, outcomes in state["free"].items()}
        self._free_step = dict(state["free_step"])
