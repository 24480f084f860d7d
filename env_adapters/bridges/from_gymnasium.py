"""A text environment around a gymnasium environment.

Owns the calls of gymnasium's interface. Seeds go to its ``reset``, which seeds the generator that the environment draws
from.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsFloat

from env_adapters.base import Transition
from env_adapters.bridges.base import Actions, Bridge, IsSuccess


class GymnasiumLike(Protocol):
    """The part of ``gymnasium.Env`` that is used."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return the first observation of an episode, and its info."""
        ...

    def step(self, action: Any, /) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated, info."""
        ...

    def close(self) -> Any:
        """Free what it holds."""
        ...


def positive(reward: float, info: Any) -> bool:
    """Whether the last reward was positive."""
    return reward > 0


class GymnasiumEnvironment(Bridge):
    """Text around a gymnasium environment with discrete or text actions."""

    def __init__(
        self,
        env: GymnasiumLike,
        *,
        name: str,
        goal: str,
        rules: str,
        actions: Actions,
        forms: Sequence[str] = (),
        render: Callable[[Any], str] = str,
        is_success: IsSuccess = positive,
        max_turns: int = 30,
    ) -> None:
        """Wrap ``env``.

        Args:
            env: The environment; ``close`` closes it.
            name: As in ``Bridge``, and so are the others that are not explained here.
            goal: The task in words.
            rules: The first part of the system prompt.
            actions: Phrase to action, or a function from text to action.
            forms: The forms of actions, where ``actions`` is a function.
            render: Observation to text.
            is_success: Whether an episode that terminated was won, from its last reward and info.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If there is no action or ``max_turns`` is not a positive integer.
        """
        super().__init__(
            name=name,
            goal=goal,
            rules=rules,
            actions=actions,
            forms=forms,
            is_success=is_success,
            close=env.close,
            max_turns=max_turns,
        )
        self._env = env
        self._render = render

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        self.task_id = f"{self.name}/{seed}"
        observation, _ = self._env.reset(seed=seed, options=options or None)
        return self._render(observation)

    def _play(self, action: str) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(self._action(action))
        return self._report(self._render(observation), reward, terminated=terminated, truncated=truncated, info=info)
