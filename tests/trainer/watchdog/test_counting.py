"""Counts of what is under way in other processes; Ray is a fake that runs calls at once, or never."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from verl_comprl.platform.under_way import doing
from verl_comprl.trainer.no_experience_runtime import NoExperienceRuntime
from verl_comprl.trainer.watchdog import counting
from verl_comprl.trainer.watchdog.counting import UnderWayCount


class Process:
    """An actor as Ray shows it; a server's has a vLLM engine with so many requests."""

    def __init__(self, requests: int | None = None, failure: str = "") -> None:
        states = dict.fromkeys(range(requests or 0))
        processor = SimpleNamespace(get_num_unfinished_requests=lambda: len(states))
        self.engine = None if requests is None else SimpleNamespace(output_processor=processor)
        self.failure = failure
        self.__dict__["__ray_call__"] = SimpleNamespace(remote=lambda function: self.failure or function(self))


@pytest.fixture(autouse=True)
def ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(references: list[Any]) -> list[Any]:
        if "dead" in references:
            raise ActorDiedError
        return references

    def wait(references: list[Any], *, num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        assert num_returns == len(references) and timeout == 0
        silent = [reference for reference in references if reference == "silent"]
        return [reference for reference in references if reference != "silent"], silent

    monkeypatch.setattr(counting, "ray", SimpleNamespace(get=get, wait=wait))


def make_trainer(*servers: Process) -> Any:
    replicas = [SimpleNamespace(servers=[server]) for server in servers]
    return SimpleNamespace(
        agent_loop_manager=SimpleNamespace(agent_loop_workers=[Process(), Process()]),
        experience_runtime=NoExperienceRuntime(),
        checkpoint_manager=SimpleNamespace(replicas=replicas),
    )


def test_counts_are_those_of_the_end_of_the_step_before() -> None:
    count, trainer = UnderWayCount(), make_trainer(Process(requests=3), Process(requests=2), Process())
    with doing("generate"):
        assert count.metrics(trainer) == {}
    assert count.metrics(trainer) == {"comprl/under_way/episodes": 2.0, "comprl/under_way/actor_requests": 5.0}
    assert count.metrics(trainer)["comprl/under_way/episodes"] == 0


def test_manager_and_extractor_are_counted_where_there_are_any() -> None:
    trainer = make_trainer(Process(requests=0))
    serving = SimpleNamespace(replicas=[SimpleNamespace(servers=[Process(requests=4)])])
    trainer.experience_runtime = SimpleNamespace(manager=Process(), extractor=SimpleNamespace(serving=serving))
    count = UnderWayCount()
    count.metrics(trainer)
    found = count.metrics(trainer)
    assert found["comprl/under_way/manager"] == 0 and found["comprl/under_way/extractor_requests"] == 4


@pytest.mark.parametrize("failure", ["silent", "dead"])
def test_a_server_without_an_answer_costs_its_number_only(failure: str) -> None:
    count, trainer = UnderWayCount(), make_trainer(Process(requests=3), Process(failure=failure))
    count.metrics(trainer)
    assert count.metrics(trainer) == {"comprl/under_way/episodes": 0.0}
