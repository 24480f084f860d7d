"""Bridge from clients of OpenEnv (meta-pytorch/OpenEnv) to text environments.

Owns the calls to OpenEnv's synchronous client. The environment itself runs in a server, which receives a seed with each
reset but may ignore it.
"""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from env_adapters.base import Transition
from env_adapters.bridges.base import Actions, Bridge, IsSuccess, full_reward, small_seed


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
        """Close the connection, and stop the server if the client has started it."""
        ...


class OpenEnvEnvironment(Bridge):
    """An OpenEnv client as a text environment."""

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
            name: Name of the task; the task id is this name and the seed.
            goal: The task in words.
            rules: The first part of the system prompt.
            actions: ``Action`` objects by phrase, or a function from text to ``Action``.
            render: Function from observation to text.
            forms: Templates of actions, if ``actions`` is a function.
            is_success: Decides whether an episode that is done was successful, from its last reward and observation.
            max_turns: Turns after which the episode is truncated.

        Raises:
            TypeError: If the client is asynchronous.
            ValueError: If there is no action or ``max_turns`` is not a positive integer.
        """
        if inspect.iscoroutinefunction(client.reset):
            raise TypeError(f"{type(client).__name__} is asynchronous; pass its synchronous form, client.sync()")
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
        observation = self._client.reset(**{**options, "seed": small_seed(seed)}).observation
        self._name_task(getattr(observation, "metadata", None) or {}, seed)
        return self._render(observation)

    def _play(self, action: str) -> Transition:
        result = self._client.step(self._action(action))
        text = self._render(result.observation)
        return self._report(text, result.reward, terminated=result.done, truncated=False, info=result.observation)
