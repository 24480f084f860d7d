"""The bridge from OpenEnv, tested on objects with the interface of meta-pytorch/OpenEnv 0.2.3 at commit 685de41."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from env_adapters.bridges import OpenEnvEnvironment

COLOURS = ("red", "green", "blue")


@dataclass
class Result:
    """Stand-in for openenv.core.client_types.StepResult."""

    observation: Any
    reward: float | None = None
    done: bool = False


@dataclass
class Observation:
    text: str
    won: bool = False
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class Guess:
    """An action that validates itself, as pydantic models do."""

    colour: str

    def __post_init__(self) -> None:
        if self.colour not in COLOURS:
            raise ValueError(f"not a colour: {self.colour}")


class Server:
    """Holds the game and exchanges JSON, like a server behind a web socket."""

    def handle(self, message: str) -> str:
        request = json.loads(message)
        if request["type"] == "reset":
            self.colour, self.turns = COLOURS[request["data"]["seed"] % 3], 0
            return json.dumps({"observation": {"text": "Which colour?"}})
        self.turns += 1
        won = request["data"]["colour"] == self.colour
        text = "Yes." if won else "No."
        return json.dumps(
            {"observation": {"text": text, "won": won}, "reward": float(won), "done": won or self.turns == 5}
        )


class SyncClient:
    """Stand-in for openenv.core.sync_client.SyncEnvClient."""

    def __init__(self) -> None:
        self.server, self.seeds, self.closed = Server(), [], 0

    def reset(self, **kwargs: Any) -> Result:
        self.seeds.append(kwargs["seed"])
        return self._ask("reset", kwargs)

    def step(self, action: Guess, **kwargs: Any) -> Result:
        return self._ask("step", {"colour": action.colour})

    def close(self) -> None:
        self.closed += 1

    def _ask(self, kind: str, data: dict[str, Any]) -> Result:
        answer = json.loads(self.server.handle(json.dumps({"type": kind, "data": data})))
        return Result(Observation(**answer["observation"]), answer.get("reward"), answer.get("done", False))


class AsyncClient:
    """Stand-in for openenv.core.env_client.EnvClient."""

    async def reset(self, **kwargs: Any) -> Result:
        return Result(None)

    async def step(self, action: Any, **kwargs: Any) -> Result:
        return Result(None)

    async def close(self) -> None:
        pass


def colours(client: Any, **arguments: Any) -> OpenEnvEnvironment:
    words: dict[str, Any] = {"name": "colours", "goal": "Guess the colour.", "rules": "I think of a colour."}
    defaults: dict[str, Any] = {"actions": Guess, "forms": ["a colour"], "render": lambda observation: observation.text}
    return OpenEnvEnvironment(client, **{**words, **defaults, **arguments})


def test_an_episode_with_actions_that_validate_themselves() -> None:
    environment = colours(SyncClient(), max_turns=9)
    observation, info = environment.reset(seed=4)  # green
    assert observation == "Which colour?" and info["task_id"] == "colours/4"
    observation, reward, *_, info = environment.step("<action>purple</action>")
    assert not info["action_valid"] and reward == 0.0 and "Allowed actions: a colour." in observation
    assert environment.step("<action>red</action>")[:4] == ("No.", 0.0, False, False)
    observation, reward, terminated, truncated, info = environment.step("<action>green</action>")
    assert (observation, reward, terminated, truncated, info["success"]) == ("Yes.", 1.0, True, False, True)


def test_the_first_observation_can_name_the_task() -> None:
    """Experience is retrieved for the goal: with one goal for all episodes all would get the same."""
    client = SyncClient()
    environment = colours(client)
    assert environment.reset(seed=1)[1].items() >= {"goal": "Guess the colour.", "task_id": "colours/1"}.items()
    names = {"goal": "Guess the colour of grass.", "task_id": "grass"}
    client.reset = lambda **kwargs: Result(Observation("Which colour?", metadata=names))
    assert environment.reset(seed=1)[1].items() >= {"goal": "Guess the colour of grass.", "task_id": "grass"}.items()


def test_an_episode_with_phrases() -> None:
    environment = colours(SyncClient(), actions={f"say {colour}": Guess(colour) for colour in COLOURS})
    environment.reset(seed=2)
    assert environment.admissible_actions == ["say red", "say green", "say blue"]
    assert environment.step("Say BLUE")[4]["success"]
    environment.reset(seed=2)
    results = [environment.step("say red") for _ in range(5)]
    assert results[-1][1:4] == (0.0, True, False) and not results[-1][4]["success"]


def test_success_can_be_read_from_the_observation() -> None:
    environment = colours(SyncClient(), is_success=lambda reward, observation: observation.won)
    environment.reset(seed=0)
    assert environment.step("red")[4]["success"]


def test_a_missing_reward_counts_as_zero() -> None:
    client = SyncClient()
    client.step = lambda action, **kwargs: Result(Observation("..."))
    environment = colours(client)
    environment.reset(seed=0)
    assert environment.step("red")[:4] == ("...", 0.0, False, False)


def test_seeds_are_sent_modulo_2_to_the_32() -> None:
    client = SyncClient()
    environment = colours(client)
    for seed in (3, 2**62 + 1):
        environment.reset(seed=seed)
    assert client.seeds == [3, 1]


def test_the_client_is_closed_once() -> None:
    client = SyncClient()
    environment = colours(client)
    environment.close()
    environment.close()
    assert client.closed == 1


def test_an_asynchronous_client_is_refused() -> None:
    with pytest.raises(TypeError, match=r"AsyncClient is asynchronous; pass its synchronous form, client.sync\(\)"):
        colours(AsyncClient())
