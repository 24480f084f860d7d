"""vLLM plugin (entry point group ``vllm.general_plugins``): vLLM loads it in every process of a server."""

import os

from verl_comprl.platform.detection import uses_cpu


def register() -> None:
    """Make vLLM's CPU build accept weight updates and need no compiler; does so in a CPU run of verl only.

    In every process that belongs to Ray, progress bars have no lock that would outlive it.
    """
    if "RAY_JOB_ID" in os.environ:
        from verl_comprl.platform.patches import lock_progress_bars_with_threads

        lock_progress_bars_with_threads()
    if not uses_cpu():
        return
    import torch

    # Log-probs of sampled tokens go through torch.compile even in eager mode, which would need g++ at run time.
    torch._dynamo.config.disable = True
    # verl asks for it with ``rollout.full_determinism``; there are kernels of that kind for GPUs only.
    os.environ.pop("VLLM_BATCH_INVARIANT", None)
    from verl_comprl.platform.patches import keep_vllm_cpu_weights

    keep_vllm_cpu_weights()
