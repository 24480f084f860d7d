"""A text environment around a client of OpenEnv (meta-pytorch/OpenEnv).

Owns the calls of OpenEnv's synchronous client. The environment itself runs in a server; a seed is sent with every
reset, and whether it is heeded is the server's affair.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from env_adapters.base import Transition
from env_adapters.bridges.base import Actions, Bridge, IsSuccess, small_seed


class StepResultLike(Protocol):
    """The part of OpenEnv's ``StepResult`` that is used."""

    observation: Any
    reward: float | None
    done: bool


class OpenEnvLike(Protocol):
    """The part of OpenEnv's ``SyncEnvClient`` that is used."""

    def reset(self, **kwargs: Any) -> StepResultLike:
        """Start an episode; ``seed`` is one of the arguments."""
        ...

    def step(self, action: Any) -> StepResultLike:
        """Take a step."""
        ...

    def close(self) -> None:
        """Close the connection, and stop a server that the client has started."""
        ...


def full_reward(reward: float, observation: Any) -> bool:
    """Whether the last reward was at least 1."""
    return reward >= 1


class OpenEnvEnvironment(Bridge):
    """Text around an OpenEnv client."""

    def __init__(
        self,
        client: OpenEnvLike,
        *,
        name: str,
        goal: str,
        rules: str,
        actions: Actions,
        render: Callable[[Any], str],
        forms: Sequence[str] = (),
        is_success: IsSuccess = full_reward,
        max_turns: int = 30,
    ) -> None:
        """Wrap ``client``.

        Args:
            client: A synchronous client: ``EnvClient(...).sync()``.
            name: As in ``Bridge``, and so are the others that are not explained here.
            goal: The task in words.
            rules: The first part of the system prompt.
            actions: Phrase to ``Action``, or a function from text to ``Action``.
            render: Observation to text.
            forms: The forms of actions, where ``actions`` is a function.
            is_success: Whether an episode that is done was won, from its last reward and observation.
            max_turns: Turns after which the episode is truncated.

        Raises:
            TypeError: If the client is asynchronous.
            ValueError: If there is no action or ``max_turns`` is not a positive integer.
        """
        if inspect.iscoroutinefunction(client.reset):
            raise TypeError(f"{type(client).__name__} is asynchronous; give its synchronous form, client.sync()")
        super().__init__(
            name=name,
            goal=goal,
            rules=rules,
            actions=actions,
            forms=forms,
            is_success=is_success,
            close=client.close,
            max_turns=max_turns,
        )
        self._client = client
        self._render = render

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        self.task_id = f"{self.name}/{seed}"
        return self._render(self._client.reset(**{**options, "seed": small_seed(seed)}).observation)

    def _play(self, action: str) -> Transition:
        result = self._client.step(self._action(action))
        text = self._render(result.observation)
        return self._report(text, result.reward, terminated=result.done, truncated=False, info=result.observation)
