"""Environments that follow the interface without its base class: ``reset(seed=…)`` and ``step(text)``.

Owns what is added to them: a turn limit, the info keys that they do not give, a system prompt and dataset rows. They
read the model's whole message and keep their own rules for invalid actions.
"""

import inspect
from collections.abc import Callable
from contextlib import closing
from functools import cache
from typing import Any, ClassVar

from env_adapters import dataset
from env_adapters.base import Step, TextEnvironment, Transition
from env_adapters.dataset import Task, split_seeds

_INSTRUCTIONS = """You act in an environment, by text. You have {max_turns} turns.

First think inside <think> </think>, then answer with exactly one action inside <action> </action>."""


class PlainEnvironment(TextEnvironment):
    """One object of a class with ``reset`` and ``step`` as a text environment.

    ``goal``, ``task_id`` and ``admissible_actions`` are taken from the info of ``reset`` and ``step``, else from the
    object; so is ``instructions``, from the object. ``success`` is that of the info, else whether a terminated
    episode's last reward is positive; ``score`` likewise, else 1 or 0.
    """

    make_object: ClassVar[Callable[..., Any]]

    def __init__(self, *, max_turns: int = 30, **options: Any) -> None:
        """Create the object; ``max_turns`` is passed on if it has such an option."""
        super().__init__(max_turns=max_turns)
        own = type(self).make_object
        self._object = own(**options, **({"max_turns": max_turns} if "max_turns" in options_of(own) else {}))
        default = _INSTRUCTIONS.format(max_turns=max_turns)
        self.instructions = str(getattr(self._object, "instructions", default))
        self.tools = tuple(getattr(self._object, "tools", ()))  # type: ignore[misc]  # of the object, not of its class
        self._valid = True

    def close(self) -> None:
        """Close the object if it can be closed."""
        getattr(self._object, "close", lambda: None)()

    def step(self, action_text: str) -> Step:
        """Play one turn; whether the action was valid is what the object says."""
        self._valid = True
        observation, reward, terminated, truncated, info = super().step(action_text)
        return observation, reward, terminated, truncated, info | {"action_valid": info["action_valid"] and self._valid}

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        result = self._object.reset(seed=seed, options=options) if options else self._object.reset(seed=seed)
        observation, info = result if isinstance(result, tuple) else (result, {})
        self.task_id, self.goal = f"{type(self._object).__name__}/{seed}", ""
        self.admissible_actions = []
        self._note(info)
        if not self.goal:
            raise ValueError(f"{type(self._object).__name__} gives no goal: put 'goal' into the info of reset()")
        return str(observation)

    def _read(self, action_text: str) -> str:
        return action_text

    def _play(self, action: str) -> Transition:
        observation, reward, terminated, truncated, info = self._object.step(action)
        self._note(info)
        self._valid = bool(info.get("action_valid", True))
        success = bool(info.get("success", terminated and reward > 0))
        score = float(info.get("score", success))
        effective = bool(info.get("action_effective", self._valid))
        return Transition(
            str(observation), float(reward), bool(terminated), success, score, effective, truncated=bool(truncated)
        )

    def _note(self, info: dict[str, Any]) -> None:
        """Keep what the info, else the object, says about the task."""
        for name in ("goal", "task_id", "admissible_actions"):
            value = info.get(name, getattr(self._object, name, None))
            if value is not None:
                setattr(self, name, list(value) if name == "admissible_actions" else str(value))


def is_plain(target: Any) -> bool:
    """Return whether instances of a class have what an environment needs."""
    return isinstance(target, type) and all(callable(getattr(target, name, None)) for name in ("reset", "step"))


@cache
def adapt(target: type) -> type[TextEnvironment]:
    """Return a class whose instances are text environments around instances of ``target``."""
    members = {"make_object": target, "__module__": target.__module__, "__qualname__": target.__qualname__}
    adapted = type(target.__name__, (PlainEnvironment,), members)
    given = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in options_of(target).values()]
    limit = inspect.Parameter("max_turns", inspect.Parameter.KEYWORD_ONLY, default=30, annotation=int)
    others = [parameter for parameter in given if parameter.name != "max_turns"]
    adapted.__signature__ = inspect.Signature([limit, *others])  # type: ignore[attr-defined]  # read by inspect
    return adapted


def rows_of(name: str, environment: type[TextEnvironment]) -> Callable[..., list[dict[str, Any]]]:
    """Return the dataset builder of a class from ``adapt``: it resets an instance once for every row.

    Args:
        name: The class's import path.
        environment: The class.
    """

    def build_rows(
        *, split: str, count: int, seed: int = 0, max_turns: int = 30, **options: Any
    ) -> list[dict[str, Any]]:
        options = {**options, "max_turns": max_turns}
        tasks: list[Task] = []
        with closing(environment(**options)) as instance:
            for number in split_seeds(split, count, seed=seed):
                info = instance.reset(seed=number)[1]
                tasks.append(Task(number, info["task_id"], info["goal"]))
            source, instructions = environment.__name__, instance.instructions
        return dataset.build_rows(name, source, tasks, split=split, options=options, instructions=instructions)

    kinds = inspect.signature(build_rows).parameters
    shared = [kinds[name] for name in ("split", "count", "seed")]
    build_rows.__signature__ = inspect.Signature([*shared, *inspect.signature(environment).parameters.values()])  # type: ignore[attr-defined]  # read by inspect
    return build_rows


def options_of(target: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the named parameters of a class."""
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(target).parameters
    return {name: parameter for name, parameter in parameters.items() if parameter.kind not in variable}
