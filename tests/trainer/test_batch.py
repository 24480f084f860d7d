"""What each output of a batch counts, by hand."""

import pytest

from verl_comprl.rollout.episode import OutputKind
from verl_comprl.trainer.batch import RolloutBatch

EPISODE, JUDGEMENT, DISTILLATION = OutputKind.EPISODE, OutputKind.JUDGEMENT, OutputKind.DISTILLATION


def batch(*rows: tuple[str, int, bool, float, OutputKind, int]) -> RolloutBatch:
    """Rows of prompt, session, guided, success, kind and tokens."""
    return RolloutBatch(
        keys=[f"{prompt}_{session}_{number}" for number, (prompt, session, *_) in enumerate(rows)],
        prompts=[row[0] for row in rows],
        details=[{"guided": float(row[2]), "success": row[3]} for row in rows],
        kinds=[row[4] for row in rows],
        tokens=[row[5] for row in rows],
    )


def test_equal_halves_of_single_outputs_count_as_verl_counts_them() -> None:
    rows = batch(*[("p", session, session < 2, 0.0, EPISODE, 7) for session in range(4)])
    assert rows.factors(4).tolist() == [1.0] * 4


def test_failed_rollouts_are_absent_and_the_halves_still_count_the_same() -> None:
    # Of K = 8, one guided and three free are left: ½·8 and ½·⅓·8. Of q only free ones are: ½·8 each.
    rows = batch(
        ("p", 1, True, 1.0, EPISODE, 7),
        *[("p", session, False, 0.0, EPISODE, 7) for session in (4, 6, 7)],
        *[("q", session, False, 0.0, EPISODE, 7) for session in (4, 5)],
    )
    assert rows.factors(8).tolist() == pytest.approx([4, 4 / 3, 4 / 3, 4 / 3, 4, 4])


def test_outputs_share_what_their_rollout_counts_by_tokens() -> None:
    # The guided rollout wrote 2 tokens as critic and 6 in the episode; the distilled output is no part of Eq. 5.
    rows = batch(
        ("p", 0, True, 1.0, JUDGEMENT, 2),
        ("p", 0, True, 1.0, DISTILLATION, 5),
        ("p", 0, True, 1.0, EPISODE, 6),
        ("p", 1, False, 0.0, EPISODE, 9),
    )
    assert rows.factors(2).tolist() == [0.25, 0.0, 0.75, 1.0]
    assert rows.episodes == [2, 3]
    assert len(set(rows.uids())) == 2


def test_what_is_distilled_did_better_than_the_free_half() -> None:
    rows = batch(
        ("p", 0, True, 1.0, DISTILLATION, 5),
        ("p", 0, True, 1.0, EPISODE, 6),
        ("p", 1, False, 0.0, EPISODE, 9),
        ("q", 0, True, 1.0, DISTILLATION, 5),
        ("q", 0, True, 1.0, EPISODE, 6),
        ("q", 1, False, 1.0, EPISODE, 9),
    )
    assert rows.distilled().tolist() == [True, False, False, False, False, False]
