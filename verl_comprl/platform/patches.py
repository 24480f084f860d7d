"""Every patch of a foreign library, in one place.

Each function changes one thing, says why, and has a test in ``tests/platform/test_patches.py`` that fails when the
library no longer needs it. All but the last are for running without an accelerator; none of these is applied otherwise.
"""

import functools
import os
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


@functools.cache
def reserve_resource_pools() -> dict[tuple[str, str], list[Any]]:
    """For verl 0.9.1 (``verl.single_controller.ray.base``): its pools reserve their slots themselves, without limit.

    Returns:
        Placement groups by Ray job and name of the pool, which the caller fills; a pool takes those with its name.
    """
    import ray
    from verl.single_controller.ray import base

    reserved: dict[tuple[str, str], list[Any]] = {}

    def job() -> str:
        return ray.get_runtime_context().get_job_id()

    get = base.RayResourcePool.get_placement_groups

    @functools.wraps(get)
    def get_placement_groups(self: Any, strategy: str = "STRICT_PACK", name: Any = None, device_name: str = "cuda"):
        if self.pgs is None and (groups := reserved.get((job(), self.name_prefix))):
            self.pgs = base.sort_placement_group_by_node_ip(groups)
        return get(self, strategy, name, device_name)

    check = base.ResourcePoolManager._check_resource_available

    @functools.wraps(check)
    def check_resource_available(self: Any) -> None:
        if any((job(), name) not in reserved for name in self.resource_pool_spec):  # reserved ones are not available
            check(self)

    base.RayResourcePool.get_placement_groups = get_placement_groups
    base.ResourcePoolManager._check_resource_available = check_resource_available
    return reserved
