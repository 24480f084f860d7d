"""Every patch of a foreign library, in one place.

Each function changes one thing, says why, and has a test in ``tests/platform/test_patches.py`` that fails when the
library no longer needs it. All of them are for running without an accelerator; none is applied otherwise.
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
