"""Comparison of guided with free episodes, against published and hand-made numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.algorithm.interval import wilson_interval
from verl_comprl.viewer.comparison import Comparison, Tally


def compared(successes: int, count: int, free: Tally) -> Comparison:
    """Guided episodes of one prompt each, all of whose prompts have the same free ones."""
    comparison = Comparison()
    for number in range(count):
        comparison.add(number < successes, f"prompt {number}", free)
    return comparison


def test_the_interval_is_newcombes() -> None:
    # Newcombe (1998), Table II, example (b), method 10: 9/10 against 3/10, each episode of a prompt of its own.
    comparison = Comparison()
    for number in range(10):
        comparison.add(number < 9, f"prompt {number}", Tally(1, int(number < 3)))
    assert comparison.gain == pytest.approx(0.6)
    assert comparison.gain_interval == pytest.approx((0.1705, 0.8090), abs=5e-5)


def test_episodes_of_a_prompt_that_always_end_alike_tell_as_much_as_one() -> None:
    once, often = Comparison(), Comparison()
    for number in range(4):
        for comparison, times in ((once, 1), (often, 8)):
            for _ in range(times):
                comparison.add(number < 3, f"prompt {number}", Tally(times, times * (number < 2)))
    assert often.free_count == 8 * once.free_count and often.gain == once.gain
    assert often.compared_interval == pytest.approx(once.compared_interval)
    assert often.free_interval == pytest.approx(once.free_interval)
    assert often.gain_interval == pytest.approx(once.gain_interval)


def test_each_guided_episode_is_compared_with_its_own_prompt() -> None:
    comparison = Comparison()
    for _ in range(3):
        comparison.add(True, "easy", Tally(4, 4))
    comparison.add(False, "hard", Tally(4, 0))
    assert comparison.free_rate == 0.75 and comparison.free_count == 8
    assert comparison.gain == 0  # as good as the prompts let it be


def test_a_prompt_that_counts_often_makes_the_interval_of_the_free_half_wider() -> None:
    # Of the four free episodes of four prompts 4, 3, 1 and 0 succeed: 4.8 effective ones (test_interval.py). With 3, 1,
    # 1 and 1 uses Kish's factor is 6² / (16 · 12/4) = 3/4, and their success (3 + 3/4 + 1/4) / 6.
    comparison = Comparison()
    for prompt, successes in enumerate((4, 4, 4, 3, 1, 0)):
        comparison.add(True, f"prompt {max(0, prompt - 2)}", Tally(4, successes))
    assert comparison.free_rate == pytest.approx(2 / 3)
    assert comparison.free_interval == pytest.approx(wilson_interval(2.4, 3.6))


def test_a_prompt_without_free_episodes_counts_as_a_use_only() -> None:
    comparison = Comparison()
    comparison.add(True, "known", Tally(2, 1))
    comparison.add(False, "unknown", None)
    comparison.add(False, "empty", Tally())
    assert comparison.rate == pytest.approx(1 / 3) and comparison.matched == [("known", True)]
    assert comparison.gain == 0.5


def test_what_is_shown_next_to_the_free_rate_agrees_with_the_gain() -> None:
    comparison = Comparison()
    comparison.add(False, "known", Tally(4, 1))
    assert comparison.compared_rate == comparison.rate == 0
    interval = comparison.compared_interval
    for prompt in ("lost", "lost too"):
        comparison.add(True, prompt, None)
    assert comparison.rate == pytest.approx(2 / 3) and comparison.gain == -0.25
    assert comparison.compared_rate == 0 and comparison.compared_interval == interval
    alone = Comparison()
    alone.add(True, "lost", None)
    assert alone.compared_rate == 1 and alone.free_rate is None and alone.gain is None


def test_few_uses_prove_nothing() -> None:
    assert compared(0, 2, Tally(4, 4)).gain == -1 and compared(0, 2, Tally(4, 4)).gain_interval is None
    certain = compared(0, 3, Tally(4, 4)).gain_interval
    assert certain is not None and certain[1] < 0


def test_nothing_is_claimed_without_episodes() -> None:
    assert Comparison().gain is None and Comparison().free_interval is None
    assert Comparison().compared_interval is None and Comparison().gain_interval is None


@given(st.integers(3, 50), st.integers(1, 50), st.data())
def test_an_interval_holds_its_gain_and_stays_within_one(count: int, free: int, data: st.DataObject) -> None:
    comparison = compared(data.draw(st.integers(0, count)), count, Tally(free, data.draw(st.integers(0, free))))
    assert comparison.gain is not None and comparison.gain_interval is not None
    low, high = comparison.gain_interval
    assert -1 <= low <= comparison.gain <= high <= 1
