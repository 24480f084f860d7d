"""Bridge from environments of GEM (axon-rl/gem) to text environments.

Owns the calls to GEM's interface. GEM environments explain themselves in the first observation and read the model's
whole message, so the system prompt prescribes no answer format.
"""

from typing import Any, Protocol, SupportsFloat

from env_adapters.base import Transition
from env_adapters.bridges.base import Bridge, IsSuccess, full_reward, small_seed


class GemLike(Protocol):
    """The part of ``gem.Env`` that is used."""

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Return the first observation of an episode, and its info."""
        ...

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Return observation, reward, terminated, truncated, info."""
        ...


class GemEnvironment(Bridge):
    """A GEM environment as a text environment.

    GEM seeds the global generators of Python and NumPy, so an instance must not share its process with others.
    """

    def __init__(
        self,
        env: GemLike,
        *,
        name: str,
        goal: str,
        rules: str = "The first message explains the task and how to answer.",
        is_success: IsSuccess = full_reward,
        max_turns: int = 30,
    ) -> None:
        """Wrap ``env``.

        Args:
            env: The environment; its ``close``, if it has one, is called by ``close``.
            name: Name of the task; the task id is this name and the seed.
            goal: The task in words.
            rules: The first part of the system prompt; the number of turns is appended.
            is_success: Decides whether a terminated episode was successful, from its last reward and info.
            max_turns: Turns after which the episode is truncated, unless ``env`` ends it earlier.

        Raises:
            ValueError: If ``max_turns`` is not a positive integer.
        """
        super().__init__(
            name=name,
            goal=goal,
            rules=rules,
            actions=str,
            forms=["any text"],
            is_success=is_success,
            close=getattr(env, "close", lambda: None),
            max_turns=max_turns,
        )
        self.instructions = f"{rules}\nYou have {max_turns} turns."
        self._env = env

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"a GEM environment has no reset option {next(iter(options))!r}; it has none")
        observation, info = self._env.reset(seed=small_seed(seed))
        self._name_task(info, seed)
        return _join(observation, info)

    def _read(self, action_text: str) -> str | None:
        return action_text.rpartition("</think>")[2]

    def _play(self, action: str) -> Transition:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return self._report(_join(observation, info), reward, terminated=terminated, truncated=truncated, info=info)


def _join(observation: str, info: dict[str, Any]) -> str:
    """Return the text for the model; GEM puts parts of it into the info, for its own wrappers to add."""
    parts = (info.get("prefix", ""), observation, info.get("suffix", ""))
    return "\n".join(part.strip("\n") for part in parts if part)
