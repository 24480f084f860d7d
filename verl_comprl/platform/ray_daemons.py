"""Variables of Ray's own daemons (raylet, ``gcs_server``), which they read when they are started."""

from collections.abc import MutableMapping

_DAEMON_VARIABLES = {
    # By default the last 100,000 tasks are remembered, for a dashboard that no run has: 170 MB in ``gcs_server``, which
    # the quickstart reaches after a hundred steps.
    "RAY_task_events_max_num_task_in_gcs": "10000",
    # By default workers have a nice value of 15. The weight of an extractor at idle priority would then be a twelfth of
    # theirs, where both want a core, and not a three hundredth.
    "RAY_worker_niceness": "0",
}


def set_daemon_variables(environment: MutableMapping[str, str]) -> None:
    """Set in ``environment``, with which Ray is to be started, what the user has not set."""
    for name, value in _DAEMON_VARIABLES.items():
        environment.setdefault(name, value)
