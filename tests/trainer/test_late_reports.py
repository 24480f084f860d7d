"""The trainer lets the agent loops report again; the agent loops are fakes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError

from verl_comprl.errors import WaitTimeout
from verl_comprl.trainer import late_reports
from verl_comprl.trainer.late_reports import LateReports


class Worker:
    """An agent loop that answers with the next counts, the last ones for ever, or raises them."""

    def __init__(self, *counts: Any) -> None:
        self.counts = list(counts)
        self.asked = 0
        self.__ray_call__ = SimpleNamespace(remote=self._next)

    def _next(self, _: Any) -> Any:
        self.asked += 1
        return self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time that passes only in pauses."""
    now = [0.0]

    def wait_for(results: list[Any], seconds: float, what: str) -> list[Any]:
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(late_reports, "wait_for", wait_for)
    monkeypatch.setattr(late_reports, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    yield now


def test_it_asks_until_nothing_waits_and_counts_what_was_given_up_once(clock: list[float]) -> None:
    workers = [Worker((3, 0), (0, 1)), Worker((0, 0), (2, 2), (0, 2))]
    late = LateReports(workers)
    assert late.settle(5.0) and 0 < clock[0] < 1
    assert late.metrics() == {"comprl/unreported_waiting": 0.0, "comprl/unreported_dropped": 3.0}
    assert late.metrics()["comprl/unreported_dropped"] == 0.0
    before, asked = clock[0], workers[0].asked
    assert late.settle(5.0) and clock[0] == before and workers[0].asked == asked + 1


def test_a_manager_that_stays_away_costs_no_more_than_the_limit(clock: list[float]) -> None:
    late = LateReports([Worker((3, 0)), Worker((1, 0))])
    assert not late.settle(5.0) and 4.9 < clock[0] < 5.2
    assert late.metrics()["comprl/unreported_waiting"] == 4.0


@pytest.mark.parametrize("failure", [ActorDiedError(), WaitTimeout("it", 5.0)])
def test_agent_loops_that_do_not_answer_are_not_waited_for(clock: list[float], failure: Exception) -> None:
    late = LateReports([Worker((3, 0), failure)])
    assert not late.settle(600.0) and clock[0] < 1


def test_a_run_without_agent_loops_asks_nobody() -> None:
    assert LateReports().settle(5.0)
