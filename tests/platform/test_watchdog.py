"""Moments at which a watchdog speaks, on ages that the test makes up."""

import pytest

from verl_comprl.platform.watchdog import REMEMBERED, Finding, Watchdog


def looks(watchdog: Watchdog, *ages: float, what: str = "rollouts") -> list[tuple[float, bool]]:
    """Look once for each age; returns when it was said to be late and (True) when that it ended."""
    return [(found.seconds, found.ended) for age in ages for found in watchdog.look({what: age})]


def test_it_speaks_once_at_the_limit_then_whenever_the_age_has_doubled_and_at_the_end() -> None:
    watchdog = Watchdog(after=10, factor=3)
    assert looks(watchdog, *range(45)) == [(10, False), (20, False), (40, False)]
    assert watchdog.look({}) == [Finding("rollouts", 44, 10, ended=True)]
    assert watchdog.look({}) == []


def test_what_ends_in_time_is_never_mentioned() -> None:
    watchdog = Watchdog(after=10, factor=3)
    assert looks(watchdog, *[1, 5, 9.9] * 20) == [] == watchdog.look({})


def test_what_usually_takes_long_gets_more_time_and_a_hang_does_not_count_as_usual() -> None:
    watchdog = Watchdog(after=10, factor=3)
    assert looks(watchdog, 0, 20, 1) == [(20, False), (20, True)]  # of the first, nothing is known
    assert looks(watchdog, 20, 1, 20, 1, 59) == []
    assert looks(watchdog, 60, 500, 1) == [(60, False), (500, False), (500, True)]
    assert looks(watchdog, 59, 1) == []  # the median of 20, 20, 20 and 500 is 20
    # Another kind of work is not affected.
    assert looks(watchdog, 11, what="checkpoint")[-1] == (11, False)


@pytest.mark.parametrize("times", [1, 2])
def test_the_usual_time_is_that_of_the_latest_ones(times: int) -> None:
    watchdog = Watchdog(after=10, factor=2)
    looks(watchdog, *[50, 1] * REMEMBERED * times, *[9, 1] * (REMEMBERED // 2 + 1))
    assert looks(watchdog, 19) == [(19, False)]


def test_two_kinds_of_work_are_apart() -> None:
    watchdog = Watchdog(after=10, factor=3)
    assert watchdog.look({"a": 10, "b": 3}) == [Finding("a", 10, 10, ended=False)]
    assert watchdog.look({"a": 12, "b": 12}) == [Finding("b", 12, 10, ended=False)]
    assert watchdog.look({"b": 13}) == [Finding("a", 12, 10, ended=True)]


def test_what_does_not_get_on_for_so_long_beyond_its_limit_hangs() -> None:
    watchdog = Watchdog(after=10, factor=3, end_after=100)
    looks(watchdog, 0, 9)
    assert watchdog.hung({"rollouts": 500}) is None  # it has not been found to take too long
    looks(watchdog, 200)
    assert watchdog.hung({"rollouts": 109}) is None  # rollouts have ended meanwhile
    assert watchdog.hung({"another": 500}) is None
    assert watchdog.hung({"rollouts": 110}) == Finding("rollouts", 110, 10, ended=False)
    looks(watchdog, 1)
    assert watchdog.hung({"rollouts": 500}) is None  # it has ended, and another one has begun


def test_what_usually_takes_long_hangs_later_and_0_is_never() -> None:
    usual = Watchdog(after=10, factor=3, end_after=100)
    looks(usual, 0, 20, 0, 60)
    assert usual.hung({"rollouts": 159}) is None and usual.hung({"rollouts": 160})
    never = Watchdog(after=10, factor=3)
    looks(never, 10)
    assert never.hung({"rollouts": 1e9}) is None
