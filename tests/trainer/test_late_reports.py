"""The trainer lets the agent loops report again; the agent loops are fakes."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from verl_comprl.errors import WaitTimeout
from verl_comprl.trainer import late_reports
from verl_comprl.trainer.late_reports import LateReports

NEVER = float("inf")


class Question(NamedTuple):
    """Asked of an agent loop, which answers it, or raises the answer, at ``at``."""

    answer: Any
    at: float


class Worker:
    """An agent loop that answers with the next counts, the last ones for ever, or raises them."""

    def __init__(self, clock: list[float], *counts: Any, busy_until: float = 0.0) -> None:
        self._clock = clock
        self.counts = list(counts)
        self.busy_until = busy_until
        self.asked = 0
        self.__ray_call__ = SimpleNamespace(remote=self._next)

    def _next(self, _: Any) -> Question:
        self.asked += 1
        counts = self.counts.pop(0) if len(self.counts) > 1 else self.counts[0]
        return Question(counts, max(self.busy_until, self._clock[0]))


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Time that passes in pauses, and while an answer is awaited."""
    now = [0.0]

    def wait(questions: list[Question], *, num_returns: int, timeout: float) -> tuple[list[Question], list[Question]]:
        assert num_returns == len(questions)
        until = min(max(now[0], *(question.at for question in questions)), now[0] + timeout)
        now[0] = until
        ready = [question for question in questions if question.at <= until]
        return ready, [question for question in questions if question.at > until]

    def get(question: Question) -> Any:
        if isinstance(question.answer, Exception):
            raise question.answer
        return question.answer

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(late_reports, "ray", SimpleNamespace(wait=wait, get=get))
    monkeypatch.setattr(late_reports, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    yield now


def test_it_asks_until_nothing_waits_and_counts_what_was_given_up_once(clock: list[float]) -> None:
    workers = [Worker(clock, (3, 0), (0, 1)), Worker(clock, (0, 0), (2, 2), (0, 2))]
    late = LateReports(workers)
    assert late.settle(5.0) and 0 < clock[0] < 1
    assert late.metrics() == {"comprl/unreported_waiting": 0.0, "comprl/unreported_dropped": 3.0}
    assert late.metrics()["comprl/unreported_dropped"] == 0.0
    before, asked = clock[0], workers[0].asked
    assert late.settle(5.0) and clock[0] == before and workers[0].asked == asked + 1


def test_a_manager_that_stays_away_costs_no_more_than_the_limit(clock: list[float]) -> None:
    late = LateReports([Worker(clock, (3, 0)), Worker(clock, (1, 0))])
    assert not late.settle(5.0) and 4.9 < clock[0] < 5.2
    assert late.metrics()["comprl/unreported_waiting"] == 4.0
    assert late.missing == "4 episodes are not confirmed by the manager"


def test_an_agent_loop_that_does_not_answer_is_not_taken_for_one_where_nothing_waits(clock: list[float]) -> None:
    """Nothing waited there when the step ended."""
    busy, other = Worker(clock, (0, 0), (7, 0), (0, 0)), Worker(clock, (0, 0), (2, 0), (0, 0))
    late = LateReports([busy, other])
    assert late.settle(5.0)
    busy.busy_until = clock[0] + 6.0
    assert not late.settle(5.0) and clock[0] < 5.2
    assert other.asked > 4, "it sends again what waits there only when it is asked"
    assert late.missing == "1 agent loop does not say whether episodes wait there" and late.waiting == 0
    assert late.settle(5.0) and late.missing == ""


def test_an_answer_to_an_earlier_question_does_not_count(clock: list[float]) -> None:
    """It may have come before the episode that waits there now."""
    worker = Worker(clock, (0, 0), (3, 0), busy_until=6.0)
    late = LateReports([worker])
    assert not late.settle(5.0)
    clock[0] = 20.0
    assert not late.settle(5.0) and late.waiting == 3


def test_an_agent_loop_that_cannot_be_reached_is_asked_again(clock: list[float]) -> None:
    late = LateReports([Worker(clock, ActorUnavailableError("away", None), (2, 0), (0, 0))])
    assert late.settle(5.0) and 0 < clock[0] < 2
    late = LateReports([Worker(clock, ActorUnavailableError("away", None))])
    assert not late.settle(5.0) and late.missing


def test_what_waited_in_an_agent_loop_that_has_died_is_lost_and_nobody_waits_for_it(clock: list[float]) -> None:
    stopped: list[bool] = []
    late = LateReports([Worker(clock, (3, 0), ActorDiedError()), Worker(clock, (0, 0))], lambda: bool(stopped))
    assert late.settle(600.0) and clock[0] < 1 and late.missing == ""
    assert late.metrics() == {"comprl/unreported_waiting": 0.0, "comprl/unreported_dropped": 3.0}
    assert late.lost == "1 agent loop has died with the episodes that waited there"
    assert late.settle(600.0) and clock[0] < 1
    stopped.append(True)  # which has ended it itself
    assert late.lost == ""


def test_a_stop_is_not_kept_waiting(clock: list[float]) -> None:
    late = LateReports([Worker(clock, (3, 0)), Worker(clock, (0, 0), busy_until=NEVER)], lambda: clock[0] > 100)
    assert not late.settle(3600.0) and 130 < clock[0] < 132


@pytest.mark.parametrize(("answers_after", "seconds", "limit"), [(40.0, 3600.0, 3605), (40.0, 30.0, 75), (0, 30, 40)])
def test_agent_loops_have_what_is_left_of_the_limit_when_the_manager_answers(
    clock: list[float], answers_after: float, seconds: float, limit: float
) -> None:
    limits: list[float] = []
    manager = SimpleNamespace(metrics=SimpleNamespace(remote=None))

    def ask(call: Any, seconds: float, what: str) -> None:
        limits.append(seconds)
        clock[0] += answers_after

    assert not LateReports([Worker(clock, (3, 0))]).settle_with(ask, manager, seconds)
    assert limits == [seconds] and limit - 6 < clock[0] < limit + 1
    assert LateReports([Worker(clock, (0, 0))]).settle_with(ask, manager, seconds) and limits == [seconds]


def test_what_stays_unconfirmed_is_told_with_its_reason(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    late = LateReports([Worker(clock, (1, 0)), Worker(clock, (0, 0), busy_until=NEVER)])
    with late.told(WaitTimeout):
        late.settle(1.0)
        raise WaitTimeout("it", 30)
    silent = "1 agent loop does not say whether episodes wait there"
    expected = f"1 episode is not confirmed by the manager, {silent} (waited 30 s for it)\n"
    assert capsys.readouterr().out == expected
    with LateReports().told():
        pass
    assert capsys.readouterr().out == ""


def test_a_run_without_agent_loops_asks_nobody() -> None:
    assert LateReports().settle(5.0)
