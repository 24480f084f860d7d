"""Two steps of the arms for which CI has no time."""

from pathlib import Path
from typing import Any

import pytest
from arm_settings import MORE_ARMS, SMALL, TWO_STEPS
from running import check_arm, read_steps, run_lent

pytestmark = [pytest.mark.run, pytest.mark.long, pytest.mark.timeout(1500)]
Steps = dict[str, list[dict[str, Any]]]


@pytest.fixture(scope="module")
def lent(folder: Path, initial_bank: Path) -> Steps:
    runs = [{"name": name, "overrides": changes} for name, changes in MORE_ARMS.items()]
    common = [*SMALL, *TWO_STEPS, f"comprl.initial_bank={initial_bank}", f"trainer.default_local_dir={folder}"]
    run_lent(folder, runs, common, "more_arms")
    return {name: read_steps(folder / name) for name in MORE_ARMS}


@pytest.mark.parametrize("arm", MORE_ARMS)
def test_every_arm_runs(lent: Steps, arm: str) -> None:
    check_arm(arm, lent[arm][-1])


def test_what_an_arm_leaves_out_does_not_happen(lent: Steps) -> None:
    assert [step["comprl/guided/tool_calls"] for step in lent["no_search_and_ask"]] == [0.0, 0.0]
    assert lent["no_merge"][-1]["comprl/merge/passes"] == 0
