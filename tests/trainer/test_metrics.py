"""Metrics of a step, by hand."""

import pytest

from verl_comprl.trainer.metrics import advantage_metrics


def test_advantages_per_half() -> None:
    metrics = advantage_metrics([1.0, -1.0, 0.0, 0.0, 2.0], [True, True, False, False, False])
    assert metrics == {
        "comprl/guided/advantage_mean": 0.0,
        "comprl/guided/advantage_std": 1.0,
        "comprl/guided/advantage_zero": 0.0,
        "comprl/free/advantage_mean": pytest.approx(2 / 3),
        "comprl/free/advantage_std": pytest.approx((8 / 9) ** 0.5),  # 0, 0, 2: squares 4/9, 4/9, 16/9
        "comprl/free/advantage_zero": pytest.approx(2 / 3),
    }


def test_a_half_that_is_not_there_has_no_metrics() -> None:
    assert all("guided" not in name for name in advantage_metrics([1.0], [False]))
