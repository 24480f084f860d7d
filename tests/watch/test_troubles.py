"""Metrics that say that something is wrong."""

from verl_comprl.watch.troubles import troubles


def test_a_healthy_run_has_none() -> None:
    assert troubles([]) == []
    assert troubles([{"comprl/degraded": 0.0, "comprl/free/success": 1.0, "comprl/rollouts/failed/server": 0.0}]) == []


def test_failures_of_all_steps_are_added_up_and_counters_taken_as_they_are() -> None:
    first = {"comprl/rollouts/failed/server": 2.0, "comprl/queue/dead": 1.0, "comprl/degraded": 4.0}
    latest = {
        "comprl/rollouts/failed/server": 1.0,
        "comprl/queue/dead": 1.0,
        "comprl/degraded": 0.0,
        "comprl/extractor/away": 1.0,
        "comprl/failures/distill:Timeout\x1b[2J": 3.0,
    }
    assert troubles([first, latest]) == [
        "the extractor cannot be asked",
        "1 distillation given up",
        "3 rollouts failed: server",
        "3 calls of the manager failed: distill:Timeout [2J",
    ]
