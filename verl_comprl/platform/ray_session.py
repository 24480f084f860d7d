"""Identity of this process's Ray job."""

import ray


def ray_job() -> str:
    """Return what tells this process's Ray job from all others.

    The number of a job is not enough: a Ray that is started after another one was shut down counts from 1 again.
    """
    context = ray.get_runtime_context()
    return f"{context.get_node_id()} {context.get_job_id()}"
