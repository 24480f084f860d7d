"""Every patch of a foreign library, in one place.

Each function changes one thing, says why, and has a test in ``tests/platform/test_patches.py`` that fails when the
library no longer needs it. Those of process groups and of vLLM are applied only without an accelerator.
"""

import functools
import logging
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any


@functools.cache  # once, however often it is asked for
def use_gloo_once(distributed: Any) -> None:
    """For verl 0.9.1 (``verl.utils.distributed``): torch refuses the backend "cpu:gloo,cpu:gloo" that it asks for."""
    ray_init = distributed.initialize_global_process_group_ray

    @functools.wraps(ray_init)
    def initialize_global_process_group_ray(timeout_second: float | None = None, backend: str | None = None) -> None:
        ray_init(timeout_second, backend or "cpu:gloo")

    def initialize_global_process_group(timeout_second: float = 36000) -> tuple[int, int, int]:
        initialize_global_process_group_ray(timeout_second)
        return int(os.environ["LOCAL_RANK"]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    distributed.initialize_global_process_group_ray = initialize_global_process_group_ray
    distributed.initialize_global_process_group = initialize_global_process_group


@functools.cache
def keep_vllm_cpu_weights() -> None:
    """For vLLM 0.28 on a CPU: it frees a linear layer's weight after packing it, and a sync finds nothing to fill."""
    from vllm.model_executor.layers import utils

    dispatch = utils.dispatch_cpu_unquantized_gemm

    @functools.wraps(dispatch)
    def dispatch_cpu_unquantized_gemm(layer: Any, remove_weight: bool) -> None:
        dispatch(layer, False)

    utils.dispatch_cpu_unquantized_gemm = dispatch_cpu_unquantized_gemm


def lock_progress_bars_with_threads() -> None:
    """For tqdm 4 in vLLM's engine, which Ray kills: its default lock is a named semaphore, which nobody removes then.

    A bar is made where weights are loaded from files, as with adapters.
    """
    from tqdm import tqdm

    tqdm.set_lock(threading.RLock())


@contextmanager
def variables_of_workers(trainer_base: Any, variables: Mapping[str, str]) -> Iterator[None]:
    """For verl 0.9.1 (``verl.trainer.ppo.v1.trainer_base``): its trainer has no option for the workers' environment.

    Its ``RayWorkerGroup`` takes ``worker_env``; groups that the trainer makes in the block get it.
    """
    group = trainer_base.RayWorkerGroup
    trainer_base.RayWorkerGroup = functools.partial(group, worker_env=dict(variables))
    try:
        yield
    finally:
        trainer_base.RayWorkerGroup = group


@functools.cache
def keep_trackio_run(rollout_trace: Any) -> None:
    """For verl 0.9.1 (``verl.utils.rollout_trace``): it traces to trackio's run of the current context, and finds none.

    A worker opens the run in its constructor, but Ray gives each method of an actor a context of its own. Every
    request that is traced would raise, and its rollout fail.
    """
    config = rollout_trace.RolloutTraceConfig
    init = config.init.__func__

    @functools.wraps(init)
    def keeping(cls: Any, *args: Any, **settings: Any) -> None:
        init(cls, *args, **settings)
        trackio = cls.get_client()
        if cls.get_backend() == "trackio" and isinstance(trackio, ModuleType):  # and not ours, of the first call
            run = trackio.context_vars.current_run.get()
            cls.get_instance().client = SimpleNamespace(Trace=trackio.Trace, log=run.log)

    config.init = classmethod(keeping)


@contextmanager
def ray_on_loopback() -> Iterator[None]:
    """For Ray 2: takes 127.0.0.1 as this machine's address while it starts, or connects to a Ray that started so.

    By default Ray replaces 127.0.0.1 by an address that other machines reach, even where ``_node_ip_address`` says
    127.0.0.1, and Ray, verl's HTTP servers, which have no key, and TransferQueue listen there. What is set here is what
    Ray itself sets on systems for which it supports no clusters.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def ray_keeps_sigterm_handler() -> Iterator[None]:
    """For Ray 2: leaves this process's handler of SIGTERM in place while Ray starts, if it has one.

    Ray replaces it by ones that exit without a word, with the number of the signal or 1 as the code.
    """
    from ray._private import utils

    set_handler = utils.set_sigterm_handler
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        utils.set_sigterm_handler = set_handler


@contextmanager
def random_ray_job() -> Iterator[None]:
    """For Ray 2 and verl 0.9.1: gives a Ray job that starts a number of its own, also among other Rays of this machine.

    Every Ray counts its jobs from 1, and verl tells jobs on one machine apart by that number alone: the sockets in
    /tmp through which weights go to the servers would be those of another run, whose weights a server might load. The
    number is the one thing that the processes on both ends of a socket take from the same place.
    """
    import ray
    from ray._private import state

    next_job_id = state.next_job_id
    # The upper half, which a cluster that counts does not reach; the last number means no job.
    state.next_job_id = lambda: ray.JobID.from_int(2**31 + secrets.randbelow(2**31 - 1))
    try:
        yield
    finally:
        state.next_job_id = next_job_id


@contextmanager
def trackers_get(config: dict[str, Any]) -> Iterator[None]:
    """For verl 0.9.1: it gives metrics backends, which keep it, the resolved config with every key that is in it.

    Args:
        config: What they get in its place.
    """
    from verl.trainer.ppo.v1.trainer_base import Tracking as tracking  # pyright: ignore[reportPrivateImportUsage]

    trainer_base: Any = sys.modules["verl.trainer.ppo.v1.trainer_base"]
    trainer_base.Tracking = lambda *args, **settings: tracking(*args, **{**settings, "config": config})
    try:
        yield
    finally:
        trainer_base.Tracking = tracking


@functools.cache
def reserve_resource_pools() -> dict[tuple[str, str], list[Any]]:
    """For verl 0.9.1 (``verl.single_controller.ray.base``): its pools reserve their slots themselves, without limit.

    Returns:
        Placement groups by Ray job and name of the pool, which the caller fills; a pool takes those with its name.
    """
    from verl.single_controller.ray import base

    from verl_comprl.platform.ray_session import ray_job

    reserved: dict[tuple[str, str], list[Any]] = {}

    get = base.RayResourcePool.get_placement_groups

    @functools.wraps(get)
    def get_placement_groups(self: Any, strategy: str = "STRICT_PACK", name: Any = None, device_name: str = "cuda"):
        if self.pgs is None and (groups := reserved.get((ray_job(), self.name_prefix))):
            self.pgs = base.sort_placement_group_by_node_ip(groups)
        return get(self, strategy, name, device_name)

    check = base.ResourcePoolManager._check_resource_available

    @functools.wraps(check)
    def check_resource_available(self: Any) -> None:
        job = ray_job()
        if any((job, name) not in reserved for name in self.resource_pool_spec):  # reserved ones are not available
            check(self)

    base.RayResourcePool.get_placement_groups = get_placement_groups
    base.ResourcePoolManager._check_resource_available = check_resource_available
    return reserved


def independent_copy(copy: Callable[..., Any]) -> Callable[..., Any]:
    """For verl 0.9.1: its copy of a weight that is in host memory is the weight itself, which the next update changes.

    Without this, π_old of ``separate_async`` is the current policy, and nothing says so.

    Args:
        copy: verl's function for the engine, such as ``fsdp2_sharded_save_to_cpu``.
    """
    import torch

    @functools.wraps(copy)
    def copied(module: Any) -> Any:
        in_host_memory = {
            getattr(weight, "_local_tensor", weight).data_ptr()
            for weight in module.parameters()
            if weight.device.type == "cpu"
        }

        def cloned(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: cloned(item) for name, item in value.items()}
            if type(value) is tuple:  # not a subclass with a constructor of its own
                return tuple(cloned(item) for item in value)
            if isinstance(value, torch.Tensor) and value.data_ptr() in in_host_memory:
                return value.clone()
            return value

        return cloned(copy(module))

    return copied


def accept_flush(logger: logging.Logger) -> None:
    """For verl 0.9.1: without hybrid servers it calls ``logger.info(…, flush=True)``, which is a TypeError."""
    if hasattr(logger.info, "__wrapped__"):
        return
    info = logger.info

    @functools.wraps(info)
    def without_flush(message: object, *args: object, flush: bool = False, **options: Any) -> None:
        info(message, *args, **{"stacklevel": 2, **options})

    logger.info = without_flush  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def barriers_replaced(meet: Callable[[], None]) -> Iterator[None]:
    """For verl 0.9.1, whose engines meet at barriers while they write: a rank that failed does not come, others wait.

    In a worker, in which nothing else meets at barriers meanwhile.
    """
    import torch.distributed as distributed

    barrier = distributed.barrier
    distributed.barrier = lambda *_, **__: meet()
    try:
        yield
    finally:
        distributed.barrier = barrier
