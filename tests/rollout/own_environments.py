"""Environments for agent loops, in a module that imports little: environment processes import it."""

import os
import signal
from typing import ClassVar

from env_adapters import TextEnvironment, Transition
from env_adapters.parsing import extract_tool_call


class Raising(TextEnvironment):
    """Raises in the method that its option names."""

    thread_safe: ClassVar[bool] = True

    def __init__(self, *, method: str) -> None:
        super().__init__(max_turns=9)
        self._raise("make", method)
        self._method = method

    def close(self) -> None:
        pass

    def _raise(self, method: str, wanted: str) -> None:
        if method == wanted:
            raise LookupError(f"no {method}")

    def _start(self, seed: int, options: dict) -> str:
        self._raise("reset", self._method)
        self.instructions, self.goal, self.task_id, self.admissible_actions = "", "Wait.", str(seed), []
        return "nothing"

    def _read(self, action_text: str) -> str | None:
        return action_text

    def _play(self, action: str) -> Transition:
        self._raise("step", self._method)
        return Transition("nothing, " * 60)

    def _settle(self) -> Transition:
        self._raise("truncate", self._method)
        return Transition("")


class RaisingInItsProcess(Raising):
    thread_safe: ClassVar[bool] = False


class Rewarding(Raising):
    """Gives each step the reward that its option names."""

    def __init__(self, *, reward: float) -> None:
        super().__init__(method="")
        self._reward = reward

    def _play(self, action: str) -> Transition:
        return Transition("nothing", reward=self._reward)


class Unfinished(TextEnvironment):
    """Offers a tool, hangs or dies on request, and is worth something only when it is cut off."""

    tools: ClassVar[tuple[dict, ...]] = (
        {"type": "function", "function": {"name": "dig", "description": "Dig.", "parameters": {"type": "object"}}},
    )

    def close(self) -> None:
        pass

    def _start(self, seed: int, options: dict) -> str:
        self.instructions, self.goal, self.task_id, self.admissible_actions = "", "Dig.", str(seed), []
        return "earth"

    def _read(self, action_text: str) -> str | None:
        call = extract_tool_call(action_text)
        return call[0] if call else None

    def _play(self, action: str) -> Transition:
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return Transition("more earth, " * 40)

    def _settle(self) -> Transition:
        return Transition("", reward=0.5, score=0.5)


class Dug(Unfinished):
    """Is solved by the second use of its tool."""

    def _start(self, seed: int, options: dict) -> str:
        self._dug = 0
        return super()._start(seed, options)

    def _play(self, action: str) -> Transition:
        self._dug += 1
        over = self._dug == 2
        return Transition("more earth", terminated=over, success=over)


class Talkative(Raising):
    """Says more than any model can read, of its goal as well."""

    def __init__(self) -> None:
        super().__init__(method="")

    def _start(self, seed: int, options: dict) -> str:
        observation = super()._start(seed, options)
        self.goal = "Wait for the wörld. " * 50_000
        return observation

    def _play(self, action: str) -> Transition:
        return Transition("hello wörld " * 75_000)

    def _settle(self) -> Transition:
        return Transition("good-bye wörld " * 75_000)
