"""Abstract base class of text environments, with the rules that all of them follow.

Owns the signatures of ``reset`` and ``step``, the turn limit, the response to an invalid action and the fixed info
keys. Observations, actions and rewards are defined by each family; threads, processes and timeouts are in ``host``.
"""

import operator
import secrets
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from env_adapters.parsing import extract_action, match_action
from env_adapters.protocols import PAPER, Protocol

Step = tuple[str, float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""

INFO_KEYS = frozenset({"success", "score", "action_valid", "action_effective", "admissible_actions", "task_id", "goal"})


@dataclass(frozen=True, slots=True)
class Transition:
    """Result of one valid action.

    Attributes:
        observation: Text that the model reads next.
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
    """An episodic environment whose actions and observations are text.

    A family implements ``_start``, ``_play`` and ``close``, and ``_read`` if its actions are not a fixed list. It sets
    ``instructions``, ``goal``, ``task_id`` and ``admissible_actions`` by the end of ``_start``. If truncation affects
    the outcome, it implements ``_settle``.

    The same seed and the same actions give the same texts in any process.
    """

    thread_safe: ClassVar[bool] = False
    """Whether instances may live in threads of one process, each used by one thread at a time."""

    dataset: ClassVar[str | None] = None
    """Import path ``module:function`` of the family's dataset builder, if it has one."""

    tools: ClassVar[tuple[dict[str, Any], ...]] = ()
    """Function schemas in OpenAI's format to offer to the model, if its actions are tool calls."""

    repeats_observation: ClassVar[bool] = True
    """Whether the last observation follows the text about an invalid action."""

    instructions: str
    """System prompt: rules, answer format, number of turns."""

    goal: str
    """The task in words, without details of this episode's layout; used as the retrieval query."""

    task_id: str
    """Name of the task; equal options and seeds give equal names."""

    admissible_actions: list[str]
    """Actions, or templates of actions, that are currently valid."""

    def __init__(self, *, max_turns: int = 30, protocol: Protocol = PAPER) -> None:
        """Set the turn limit.

        Args:
            max_turns: Turns after which the episode is truncated; invalid actions count.
            protocol: Form of an answer, and what invalid actions and a success give.

        Raises:
            ValueError: If ``max_turns`` is not a positive integer.
        """
        if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
            raise ValueError(f"max_turns must be a positive integer, got {max_turns!r}")
        self.max_turns = max_turns
        self.protocol = protocol
        self._turns = 0
        self._state: Transition | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode.

        Args:
            seed: Non-negative integer below 2**63 that determines the episode; drawn at random if None.
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
        shown = self.protocol.show(observation, self.admissible_actions)
        return shown, self._info(action_valid=True, action_effective=False)

    def step(self, action_text: str) -> Step:
        """Play one turn.

        No text raises an exception. An invalid action leaves the environment unchanged, costs a turn and is answered
        with the allowed actions. After the end of the episode, calls have no effect.

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
        message = self.protocol.unwrap(action_text)
        action = None if message is None else self._read(message)
        if action is None and self.protocol.invalid_ends:
            text, reward = "Invalid action. You lost.", self.protocol.invalid_reward
            self._state = state = Transition(text, reward, True, score=state.score, effective=False)
        elif action is None:
            # Not stored in self._state: the next refusal must repeat the game's observation, not this refusal.
            again = f"\n{state.observation}" if self.repeats_observation else ""
            reward = self.protocol.invalid_reward
            state = replace(state, observation=f"{self._refusal()}{again}", reward=reward, effective=False)
        else:
            state = self._play(action)
            if state.success and self.protocol.win_reward is not None:
                state = replace(state, reward=self.protocol.win_reward)
            self._state = state
        truncated = not state.terminated and (state.truncated or self._turns >= self.max_turns)
        if truncated:
            state = self._cut_off(state)
        info = self._info(action_valid=action is not None, action_effective=state.effective)
        over = state.terminated or truncated
        observation = state.observation if over else self.protocol.show(state.observation, self.admissible_actions)
        return observation, state.reward, state.terminated, truncated, info

    def truncate(self) -> Step:
        """Truncate the episode as the turn limit does, without playing a turn.

        For callers whose own budget (tokens, time) runs out before the episode ends.

        Returns:
            The same values as ``step``.

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
        """Release the instance's resources; may be called more than once."""

    @abstractmethod
    def _start(self, seed: int, options: dict[str, Any]) -> str:
        """Start the episode of ``seed`` and return its first observation."""

    @abstractmethod
    def _play(self, action: str) -> Transition:
        """Apply an action that ``_read`` returned."""

    def _read(self, action_text: str) -> str | None:
        """Return the action in a message, or None if it is not currently valid; must not raise for any text."""
        return match_action(extract_action(action_text), self.admissible_actions)

    def _refusal(self) -> str:
        """Return the text shown for an invalid action; the last observation is appended to it."""
        return (
            "Invalid action, nothing happened. Answer with one allowed action inside <action> </action>. "
            f"Allowed actions: {', '.join(self.admissible_actions)}."
        )

    def _settle(self) -> Transition | None:
        """Return the outcome of a truncated episode, or None (the default) if truncation changes nothing.

        Called once, when an episode is truncated. For families whose outcome is only known at the end (a patch to be
        graded) or that penalise truncation. The reward is added to that of the last step, and the observation, such as
        a verdict, follows its observation: the player answers no more, but who learns from the episode reads it.
        """
        return None

    def _cut_off(self, state: Transition) -> Transition:
        settled = self._settle()
        if settled is not None:
            observation = "\n".join(filter(None, (state.observation, settled.observation)))
            state = replace(state, observation=observation, reward=state.reward + settled.reward)
        # The final transition may be marked as terminated (SWE-bench grades as it does after ``submit``), but this
        # episode was truncated, and later calls must report that.
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
