"""The interface of a text environment and the rules that hold in every family.

Owns the shape of ``reset`` and ``step``, the turn limit, the answer to an invalid action and the fixed info keys. What
is observed, which actions exist and what is rewarded is each family's. Where an instance runs (thread, process,
timeouts, respawn) is left to the host.
"""

import operator
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from env_adapters.parsing import extract_action, match_action

Step = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""

INFO_KEYS = frozenset({"success", "score", "action_valid", "action_effective", "admissible_actions", "task_id", "goal"})


@dataclass(frozen=True, slots=True)
class Transition:
    """What one valid action led to.

    Attributes:
        observation: What the model reads next.
        reward: Reward of this step.
        terminated: Whether the episode ended by its own rules.
        success: Whether the goal has been reached.
        score: Graded quality of the episode so far, for logging; equals ``float(success)`` where there is no grading.
        effective: Whether the action changed anything.
        truncated: Whether the episode was cut off by a limit other than ``max_turns``.
    """

    observation: str
    reward: float = 0.0
    terminated: bool = False
    success: bool = False
    score: float = 0.0
    effective: bool = True
    truncated: bool = False

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.terminated or self.truncated


class TextEnvironment(ABC):
    """An episodic environment that speaks text both ways.

    A family implements ``_start``, ``_play`` and ``close``, and ``_read`` where its actions are not a fixed list. It
    sets ``instructions``, ``goal``, ``task_id`` and ``admissible_actions`` by the end of ``_start``. Where being cut
    off has consequences it implements ``_settle``.

    The same seed and the same actions give the same texts in any process.
    """

    thread_safe: ClassVar[bool] = False
    """Whether instances may live in threads of one process, each used by one thread at a time."""

    dataset: ClassVar[str | None] = None
    """Import path ``module:function`` of the family's dataset builder, if it has one."""

    tools: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Function schemas (OpenAI's form) that the model is offered, if its actions are tool calls."""

    instructions: str
    """System prompt: rules, answer format, number of turns."""

    goal: str
    """The task in words, without anything that only this episode's layout makes true; the retrieval query."""

    task_id: str
    """Name of the task, the same for the same options and seed."""

    admissible_actions: list[str]
    """Actions, or forms of actions, that are valid now."""

    def __init__(self, *, max_turns: int = 30) -> None:
        """Set the turn limit.

        Args:
            max_turns: Turns after which the episode is truncated; invalid actions count.

        Raises:
            ValueError: If ``max_turns`` is not a positive integer.
        """
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ValueError(f"max_turns must be a positive integer, got {max_turns!r}")
        self.max_turns = max_turns
        self._turns = 0
        self._state: Transition | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Non-negative integer below 2**63 that fixes the episode; drawn at random if None.
            options: The family's per-episode options.

        Returns:
            The first observation and the info.

        Raises:
            ValueError: If the seed is out of range or an option is unknown.
        """
        seed = secrets.randbits(32) if seed is None else operator.index(seed)
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed must be in [0, 2**63), got {seed}")
        observation = self._start(seed, options or {})
        self._turns = 0
        self._state = Transition(observation)
        return observation, self._info(action_valid=True, action_effective=False)

    def step(self, action_text: str) -> Step:
        """Take one turn.

        No text makes this raise. An invalid action leaves the environment as it is, is answered with the allowed
        actions and costs a turn. After the end of an episode nothing happens any more.

        Args:
            action_text: The model's whole message.

        Returns:
            Observation, reward, terminated, truncated, info.

        Raises:
            RuntimeError: If ``reset`` was never called.
        """
        state = self._running("step")
        if state.over:
            return self._after_the_end(state)
        self._turns += 1
        action = self._read(action_text)
        if action is None:
            state = replace(state, observation=f"{self._refusal()}\n{state.observation}", reward=0.0, effective=False)
        else:
            self._state = state = self._play(action)
        truncated = not state.terminated and (state.truncated or self._turns >= self.max_turns)
        if truncated:
            state = self._cut_off(state)
        info = self._info(action_valid=action is not None, action_effective=state.effective)
        return state.observation, state.reward, state.terminated, truncated, info

    def truncate(self) -> Step:
        """End the episode as the turn limit does, without a turn.

        For a caller whose own budget (tokens, time) is used up before the episode is over.

        Returns:
            As ``step``.

        Raises:
            RuntimeError: If ``reset`` was never called.
        """
        state = self._running("truncate")
        if state.over:
            return self._after_the_end(state)
        state = self._cut_off(replace(state, observation="The episode is over.", reward=0.0))
        info = self._info(action_valid=False, action_effective=False)
        return state.observation, state.reward, False, True, info

    @abstractmethod
    def close(self) -> None:
        """Free what the instance holds; harmless when called again."""

    @abstractmethod
    def _start(self, seed: int, options: dict[str, Any]) -> str:
        """Begin the episode that ``seed`` stands for and return its first observation."""

    @abstractmethod
    def _play(self, action: str) -> Transition:
        """Apply an action that ``_read`` returned."""

    def _read(self, action_text: str) -> str | None:
        """Return the action that a message names, or None if it is not valid now; must not raise for any text."""
        return match_action(extract_action(action_text), self.admissible_actions)

    def _refusal(self) -> str:
        """Return the answer to an invalid action; the last observation is shown below it."""
        return (
            "Invalid action, nothing happened. Answer with one allowed action inside <action> </action>. "
            f"Allowed actions: {', '.join(self.admissible_actions)}."
        )

    def _settle(self) -> Transition | None:
        """Return what being cut off leads to; its reward is added to the last step's. Default: nothing more.

        Called once, when an episode is truncated. A family whose outcome is not known before (a patch to be graded) or
        that punishes being late finds it out here; the observation is not shown to anybody.
        """
        return None

    def _cut_off(self, state: Transition) -> Transition:
        settled = self._settle()
        if settled is not None:
            state = replace(state, reward=state.reward + settled.reward)
        self._state = replace(settled or state, terminated=False, truncated=True)
        return state

    def _running(self, method: str) -> Transition:
        if self._state is None:
            raise RuntimeError(f"{method}() was called before reset()")
        return self._state

    def _after_the_end(self, state: Transition) -> Step:
        info = self._info(action_valid=False, action_effective=False)
        return "The episode is over.", 0.0, state.terminated, not state.terminated, info

    def _info(self, *, action_valid: bool, action_effective: bool) -> dict[str, Any]:
        assert self._state is not None
        return {
            "success": self._state.success,
            "score": self._state.score,
            "action_valid": action_valid,
            "action_effective": action_effective,
            "admissible_actions": list(self.admissible_actions),
            "task_id": self.task_id,
            "goal": self.goal,
        }
