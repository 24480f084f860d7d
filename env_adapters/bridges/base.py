"""Base class of the bridges from other libraries' environments to text environments.

Owns the system prompt, parsing of actions, reporting of outcomes and dataset rows. The calls to the wrapped object are
in each bridge.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Any, SupportsFloat

from env_adapters import dataset
from env_adapters.base import TextEnvironment, Transition
from env_adapters.dataset import Task, split_seeds
from env_adapters.parsing import extract_action, match_action

Actions = Mapping[str, Any] | Callable[[str], Any]
"""The wrapped object's actions by phrase, or a function from text to action that raises for any other text."""

IsSuccess = Callable[[float, Any], bool]
"""Decides whether a terminated episode was successful, from its last reward and the info (or observation) with it."""


class Bridge(TextEnvironment):
    """A text environment that wraps another library's environment and passes its rewards on unchanged.

    ``thread_safe`` is False because nothing is known about the wrapped object; subclasses may set it to True.
    """

    def __init__(
        self,
        *,
        name: str,
        goal: str,
        rules: str,
        actions: Actions,
        forms: Sequence[str],
        is_success: IsSuccess,
        close: Callable[[], object],
        max_turns: int,
    ) -> None:
        """Set the texts and the conversion functions.

        Args:
            name: Name of the task; the task id is this name and the seed.
            goal: The task in words.
            rules: The first part of the system prompt: the game, the observations, how to win. The number of turns, the
                actions and the answer format are appended.
            actions: See ``Actions``.
            forms: Templates of actions that the model is shown, if ``actions`` is a function.
            is_success: See ``IsSuccess``.
            close: Releases the wrapped object; called once.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If there is no action or ``max_turns`` is not a positive integer.
        """
        super().__init__(max_turns=max_turns)
        self.admissible_actions = list(forms if callable(actions) else actions)
        if not self.admissible_actions:
            raise ValueError(
                f"environment {name!r} has no actions: pass 'actions' as a mapping, or as a function with 'forms'"
            )
        self.name = name
        self.goal = self._usual_goal = goal
        self.instructions = "\n".join(
            [
                rules,
                f"You have {max_turns} turns. A turn in which you answer with an invalid action is lost.",
                "",
                f"Allowed actions: {', '.join(self.admissible_actions)}.",
                "First think inside <think> </think>, then answer with exactly one action inside <action> </action>, "
                "for example:",
                f"<think>My reasons.</think><action>{self.admissible_actions[0]}</action>",
            ]
        )
        self._actions = actions
        self._is_success = is_success
        self._resources = ExitStack()
        self._resources.callback(close)

    def close(self) -> None:
        """Close the wrapped object."""
        self._resources.close()

    def _read(self, action_text: str) -> str | None:
        text = extract_action(action_text)
        if not callable(self._actions):
            return match_action(text, self.admissible_actions)
        try:
            self._actions(text)
        except Exception:  # any exception of the user's function means that the text is not an action
            return None
        return text

    def _action(self, text: str) -> Any:
        """Return the wrapped object's action for a text that ``_read`` returned."""
        return self._actions(text) if callable(self._actions) else self._actions[text]

    def _name_task(self, info: Mapping[str, Any], seed: int) -> None:
        """Set goal and name of the task to those that the wrapped object gives for the episode, else to the usual ones.

        The goal is what experience is retrieved for: with one goal for all episodes all would get the same entries.
        """
        self.goal = str(info.get("goal", self._usual_goal))
        self.task_id = str(info.get("task_id", f"{self.name}/{seed}"))

    def _report(
        self, observation: str, reward: SupportsFloat | None, *, terminated: bool, truncated: bool, info: Any
    ) -> Transition:
        """Return the transition for the results of the wrapped object's step."""
        value = 0.0 if reward is None else float(reward)
        success = bool(terminated and self._is_success(value, info))
        return Transition(observation, value, bool(terminated), success, float(success), truncated=bool(truncated))


def full_reward(reward: float, info: Any) -> bool:
    """Return whether the last reward was at least 1; GEM gives less for a near miss."""
    return reward >= 1


def small_seed(seed: int) -> int:
    """Return the seed modulo 2**32, the range of NumPy's global generator; its parity, and so its split, is kept."""
    return seed % 2**32


def bridged_rows(
    environment: Callable[..., Bridge], split: str, count: int, *, seed: int = 0, max_turns: int = 30, **options: Any
) -> list[dict[str, Any]]:
    """Build the dataset rows of a subclass that can be imported; creates one instance to read its texts.

    If the wrapped object gives goals or names of its tasks, the instance is reset for every row.

    Args:
        environment: The class; its import path becomes the rows' environment.
        split: ``train`` or ``val``; their seeds are disjoint.
        count: Number of rows, at most 2**20.
        seed: Selects the episodes, in [0, 2**40).
        max_turns: Turn limit of each episode.
        **options: The other options of the class.

    Raises:
        ValueError: If an argument is out of range.
    """
    options = {**options, "max_turns": max_turns}
    tasks: list[Task] = []
    with closing(environment(**options)) as instance:
        name, goal, instructions = instance.name, instance.goal, instance.instructions
        varies = True
        for number in split_seeds(split, count, seed=seed):
            task = Task(number, f"{name}/{number}", goal)
            if varies:
                info = instance.reset(seed=number)[1]
                usual, task = task, Task(number, info["task_id"], info["goal"])
                varies = task != usual
            tasks.append(task)
    return dataset.build_rows(
        f"{environment.__module__}:{environment.__qualname__}",
        name,
        tasks,
        split=split,
        options=options,
        instructions=instructions,
    )
