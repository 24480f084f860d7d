"""The share of episodes that is drawn by id."""

import pytest

from verl_comprl.extractor.draw import is_drawn


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_about_the_share_is_drawn_and_a_larger_share_draws_them_too(share: float) -> None:
    ids = [f"{prompt}_{session}" for prompt in range(1000) for session in range(8)]
    drawn = {id for id in ids if is_drawn(id, share)}
    assert len(drawn) / len(ids) == pytest.approx(share, abs=0.02)  # about four standard deviations
    assert drawn <= {id for id in ids if is_drawn(id, share + 0.05)}


def test_the_choice_is_that_of_the_id_alone() -> None:
    # `printf a | b2sum -l 64`, as a fraction of 2 ** 64
    for id, fraction in {"a": 0.25379, "b": 0.51738, "d": 0.70956, "e": 0.06581}.items():
        assert not is_drawn(id, fraction - 0.001) and is_drawn(id, fraction + 0.001)


def test_a_share_of_one_draws_all() -> None:
    assert all(is_drawn(str(number), 1.0) for number in range(1000))
