"""Comparison of guided with free episodes, against published and hand-made numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.viewer.comparison import Comparison, Tally


def compared(successes: int, count: int, free: Tally) -> Comparison:
    comparison = Comparison()
    for number in range(count):
        comparison.add(number < successes, "prompt", free)
    return comparison


def test_the_interval_is_newcombes() -> None:
    # Newcombe (1998), Table II, example (a), method 10: 56/70 against 48/80.
    comparison = compared(56, 70, Tally(80, 48))
    assert comparison.gain == pytest.approx(0.2)
    assert comparison.gain_interval == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_each_guided_episode_is_compared_with_its_own_prompt() -> None:
    comparison = Comparison()
    for _ in range(3):
        comparison.add(True, "easy", Tally(4, 4))
    comparison.add(False, "hard", Tally(4, 0))
    assert comparison.free_rate == 0.75 and comparison.free_count == 8
    assert comparison.gain == 0  # as good as the prompts let it be


def test_a_prompt_without_free_episodes_counts_as_a_use_only() -> None:
    comparison = Comparison()
    comparison.add(True, "known", Tally(2, 1))
    comparison.add(False, "unknown", None)
    comparison.add(False, "empty", Tally())
    assert comparison.guided.rate == pytest.approx(1 / 3) and comparison.matched.rate == 1.0
    assert comparison.gain == 0.5


def test_few_uses_prove_nothing() -> None:
    assert compared(0, 2, Tally(4, 4)).gain == -1 and compared(0, 2, Tally(4, 4)).gain_interval is None
    certain = compared(0, 3, Tally(4, 4)).gain_interval
    assert certain is not None and certain[1] < 0


def test_nothing_is_claimed_without_episodes() -> None:
    assert Comparison().gain is None and Comparison().free_interval is None and Tally().interval is None


@given(st.integers(3, 50), st.integers(1, 50), st.data())
def test_an_interval_holds_its_gain_and_stays_within_one(count: int, free: int, data: st.DataObject) -> None:
    comparison = compared(data.draw(st.integers(0, count)), count, Tally(free, data.draw(st.integers(0, free))))
    assert comparison.gain is not None and comparison.gain_interval is not None
    low, high = comparison.gain_interval
    assert -1 <= low <= comparison.gain <= high <= 1
