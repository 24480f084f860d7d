"""Dataset rows for SWE-bench; needs no sandbox."""

from typing import Any

from env_adapters import dataset
from env_adapters.dataset import Task, split_of, split_seeds
from env_adapters.swebench.backends import get_backend
from env_adapters.swebench.instances import BUNDLED, HELD_OUT, data_file, tasks_of
from env_adapters.swebench.sandbox import Limits
from env_adapters.swebench.tools import build_instructions


def build_rows(
    split: str,
    count: int | None = None,
    *,
    data: str | None = None,
    backend: str = "bubblewrap",
    held_out: float = HELD_OUT,
    seed: int = 0,
    max_turns: int = 30,
    timeout: float = 30.0,
    test_timeout: float = 20.0,
) -> list[dict[str, Any]]:
    """Build the rows of one split.

    Args:
        split: ``train`` or ``val``; their tasks are disjoint, unless ``held_out`` is 0.
        count: Number of rows; default: one per task. If it is larger, the tasks repeat in the same order.
        data: File with the tasks; default: ``$SWEBENCH_DATA``, else ``bundled``, our own tasks.
        backend: Kind of sandbox, a key of ``backends.BACKENDS``.
        held_out: Share of the tasks that belong to ``val``; with 0 both splits have all tasks.
        seed: Selects the episodes, in [0, 2**40).
        max_turns: Turn limit of each episode.
        timeout: Seconds that a command may run.
        test_timeout: Seconds that the tests may run.

    Returns:
        The rows; their options contain the full path of the data file.

    Raises:
        ValueError: If an argument is out of range.
    """
    get_backend(backend)
    for seconds in (timeout, test_timeout):
        Limits(timeout=seconds)
    tasks = tasks_of(split, data, held_out)
    file = data_file(data)
    # Resolved, so that an episode does not depend on the variables of the process that plays it.
    chosen = BUNDLED if file == data_file(BUNDLED) else str(file.resolve())
    seeds = split_seeds(split, len(tasks) if count is None else count, seed=seed)
    instances = [(number, tasks[split_of(number)[1] % len(tasks)]) for number in seeds]
    return dataset.build_rows(
        "swebench",
        "swebench-bundled" if chosen == BUNDLED else "swebench",  # no results under the benchmark's name
        [Task(number, instance.task_id, instance.goal) for number, instance in instances],
        split=split,
        options={
            "data": chosen,
            "backend": backend,
            "held_out": held_out,
            "max_turns": max_turns,
            "timeout": timeout,
            "test_timeout": test_timeout,
        },
        instructions=build_instructions(max_turns, timeout),
    )
