"""Choice of the guided slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_comprl.rollout.guidance import is_guided_slot


@given(half=st.integers(1, 8), step=st.integers(1, 100), warmup=st.integers(0, 10))
def test_half_of_a_group_is_guided_after_warm_up_and_none_before(half, step, warmup):
    guided = [is_guided_slot(session, 2 * half, 0.5, step, warmup) for session in range(2 * half)]
    assert guided == ([True] * half + [False] * half if step > warmup else [False] * 2 * half)


@pytest.mark.parametrize(("fraction", "expected"), [(0.25, 2), (0.75, 6)])
def test_other_shares(fraction, expected):
    assert sum(is_guided_slot(session, 8, fraction, 1, 0) for session in range(8)) == expected
