"""Turns outcomes of episodes into rewards for the extractor calls whose texts the episodes used.

An outcome rewards the generation record of every text that the episode used. With ``relative``, the mean outcome of the
free half of the same prompt is the baseline. It is known only once those rollouts have ended; a use waits until then.

Steps are those in which outcomes are reported, not those in which the prompts were submitted: with an asynchronous
trainer, rollouts of one prompt end in different steps, and some time after their submission.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from verl_comprl.algorithm.utility import outcome_reward, relative_reward
from verl_comprl.extractor.buffer import TrainingBuffer


@dataclass(frozen=True)
class Settling:
    """When uses are compared with the free half of their prompt."""

    rollouts: int = 1
    """Rollouts of that half: as soon as all their outcomes are in."""
    steps: int = 2
    """Actor steps to wait for them, as some may have failed; then with those that are in, or with the task's."""


ONE_STEP = Settling()
"""For a synchronous trainer: all rollouts of a prompt end in the step that submitted it."""


@dataclass(frozen=True)
class Use:
    """Use of a record by an episode, with the outcome of the episode."""

    record_id: str
    prompt: str
    task: str
    success: bool
    judged: float
    step: int
    episode: str = ""


class Credit:
    """Rewards records for outcomes, immediately or relative to the free half."""

    def __init__(
        self,
        buffer: TrainingBuffer,
        *,
        relative: bool,
        settling: Settling = ONE_STEP,
        on_reward: Callable[[Use, float], None] = lambda use, reward: None,
    ) -> None:
        """Set up for a buffer.

        Args:
            buffer: Receives the rewards; knows which records exist.
            relative: Whether the reward is the outcome minus the mean outcome of the prompt's free half.
            settling: How long a use waits for that half, if so.
            on_reward: Called with each use and its reward, also of a record that the buffer does not know.
        """
        self._on_reward = on_reward
        self._buffer = buffer
        self._relative = relative
        self._settling = settling
        self._waiting: list[Use] = []
        self._free: dict[str, list[bool]] = {}
        self._free_step: dict[str, int] = {}

    def __len__(self) -> int:
        """Return the number of uses that wait for the free half of their prompt."""
        return len(self._waiting)

    def record_outcome(
        self,
        record_id: str,
        prompt: str,
        task: str,
        success: bool,
        step: int,
        *,
        judged: float = 0.0,
        episode: str = "",
    ) -> None:
        """Record that an episode used a record, and its outcome.

        Args:
            record_id: Generation record of the text that was used.
            prompt: Id of the episode's prompt, whose free half is the baseline.
            task: The episode's task.
            success: Outcome of the episode.
            step: Actor step in which the outcome is reported.
            judged: ``s`` of Eq. 8, which is added to the reward.
            episode: Id of the episode, for the run's record.
        """
        use = Use(record_id, prompt, task, success, judged, step, episode)
        if self._relative:
            self._waiting.append(use)
        else:
            self._reward(use, outcome_reward(success))

    def record_free_outcome(self, prompt: str, success: bool, step: int) -> None:
        """Record the outcome of a rollout in a prompt's free half, reported in actor step ``step``."""
        if self._relative:
            self._free.setdefault(prompt, []).append(success)
            self._free_step[prompt] = step

    def flush_pending(self, step: int, task_outcomes: Mapping[str, Any]) -> None:
        """Reward waiting uses whose free half is complete, and those that have waited long enough.

        Args:
            step: Actor step that is being closed.
            task_outcomes: Latest outcomes of free rollouts by task, the baseline of uses whose free half has failed.
        """
        limits = self._settling
        waiting: list[Use] = []
        for use in self._waiting:
            outcomes = self._free.get(use.prompt, [])
            if len(outcomes) < limits.rollouts and step - use.step < limits.steps:
                waiting.append(use)
            else:
                compared = outcomes or list(task_outcomes.get(use.task, ()))
                self._reward(use, relative_reward(use.success, compared))
        self._waiting = waiting
        # Kept as long: a guided rollout of the prompt may end later.
        for prompt in [prompt for prompt, seen in self._free_step.items() if step - seen >= limits.steps]:
            del self._free[prompt], self._free_step[prompt]

    def _reward(self, use: Use, reward: float) -> None:
        reward += use.judged
        self._buffer.record_reward(use.record_id, reward)
        self._on_reward(use, reward)

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint, JSON-compatible."""
        return {"waiting": [asdict(use) for use in self._waiting], "free": self._free, "free_step": self._free_step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the state with what :meth:`state` returned."""
        self._waiting = [Use(**use) for use in state["waiting"]]
        self._free = {prompt: list(outcomes) for prompt, outcomes in state["free"].items()}
        self._free_step = dict(state["free_step"])
