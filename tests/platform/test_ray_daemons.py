"""Variables of Ray's daemons, in a real one."""

import os
from collections.abc import Callable

import pytest
import ray

from verl_comprl.platform.ray_daemons import set_daemon_variables
from verl_comprl.platform.ray_session import end_ray


@pytest.mark.run
def test_workers_have_the_niceness_of_the_driver(unset: Callable[..., None]) -> None:
    unset("RAY_worker_niceness", "RAY_task_events_max_num_task_in_gcs")
    set_daemon_variables(os.environ)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        assert ray.get(ray.remote(lambda: os.nice(0)).remote()) == os.nice(0)
    finally:
        end_ray()
