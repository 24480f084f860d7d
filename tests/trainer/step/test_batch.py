"""Weights of a batch's outputs, against numbers worked out by hand."""

import pytest

from verl_comprl.rollout.episode import OutputKind
from verl_comprl.trainer.step.batch import RolloutBatch

EPISODE, JUDGEMENT, DISTILLATION = OutputKind.EPISODE, OutputKind.JUDGEMENT, OutputKind.DISTILLATION


def batch(*rows: tuple[str, int, bool, float, OutputKind, int]) -> RolloutBatch:
    """Return a batch from rows of prompt, session, guided, success, kind and tokens."""
    return RolloutBatch(
        keys=[f"{prompt}_{session}_{number}" for number, (prompt, session, *_) in enumerate(rows)],
        prompts=[row[0] for row in rows],
        details=[{"guided": float(row[2]), "success": row[3]} for row in rows],
        kinds=[row[4] for row in rows],
        tokens=[row[5] for row in rows],
    )


def test_equal_halves_of_single_outputs_have_verls_own_weights() -> None:
    rows = batch(*[("p", session, session < 2, 0.0, EPISODE, 7) for session in range(4)])
    assert rows.factors(4).tolist() == [1.0] * 4


def test_the_halves_weigh_the_same_when_rollouts_have_failed() -> None:
    # Of K = 8, p has one guided and three free rollouts left: ½·8 and ½·⅓·8. q has two free ones only: ½·8 each.
    rows = batch(
        ("p", 1, True, 1.0, EPISODE, 7),
        *[("p", session, False, 0.0, EPISODE, 7) for session in (4, 6, 7)],
        *[("q", session, False, 0.0, EPISODE, 7) for session in (4, 5)],
    )
    assert rows.factors(8).tolist() == pytest.approx([4, 4 / 3, 4 / 3, 4 / 3, 4, 4])


def test_outputs_share_the_weight_of_their_rollout_by_tokens() -> None:
    # The guided rollout wrote 2 tokens as critic and 6 in the episode; the distillation output is not part of Eq. 5.
    rows = batch(
        ("p", 0, True, 1.0, JUDGEMENT, 2),
        ("p", 0, True, 1.0, DISTILLATION, 5),
        ("p", 0, True, 1.0, EPISODE, 6),
        ("p", 1, False, 0.0, EPISODE, 9),
    )
    assert rows.factors(2).tolist() == [0.25, 0.0, 0.75, 1.0]
    assert rows.episodes == [2, 3]
    assert len(set(rows.uids())) == 2


def test_episodes_better_than_the_free_half_are_distilled() -> None:
    rows = batch(
        ("p", 0, True, 1.0, DISTILLATION, 5),
        ("p", 0, True, 1.0, EPISODE, 6),
        ("p", 1, False, 0.0, EPISODE, 9),
        ("q", 0, True, 1.0, DISTILLATION, 5),
        ("q", 0, True, 1.0, EPISODE, 6),
        ("q", 1, False, 1.0, EPISODE, 9),
    )
    assert rows.distilled().tolist() == [True, False, False, False, False, False]


def test_free_episodes_better_than_their_half_are_imitated() -> None:
    rows = batch(
        ("p", 0, True, 1.0, EPISODE, 6),
        ("p", 1, False, 1.0, DISTILLATION, 5),
        ("p", 1, False, 1.0, EPISODE, 9),
        ("p", 2, False, 0.0, EPISODE, 9),
    )
    assert rows.distilled(of_guided=False).tolist() == [False, True, False, False]
