"""Bridge from gymnasium environments to text environments.

Owns the calls to gymnasium's interface. Seeds are passed to ``reset``, which seeds the environment's generator.
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
        """Release its resources."""
        ...


def positive(reward: float, info: Any) -> bool:
    """Return whether the last reward was positive."""
    return reward > 0


class GymnasiumEnvironment(Bridge):
    """A gymnasium environment with discrete or text actions as a text environment."""

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
            env: The environment; its ``close`` is called by ``close``.
            name: Name of the task; the task id is this name and the seed.
            goal: The task in words.
            rules: The first part of the system prompt.
            actions: Actions by phrase, or a function from text to action.
            forms: Templates of actions, if ``actions`` is a function.
            render: Function from observation to text.
            is_success: Decides whether a terminated episode was successful, from its last reward and info.
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
        observation, info = self._env.reset(seed=seed, options=options or None)
        self._name_task(info, seed)
        return self._render(observation)

    def _play(self, action: str) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(self._action(action))
        return self._report(self._render(observation), reward, terminated=terminated, truncated=truncated, info=info)
