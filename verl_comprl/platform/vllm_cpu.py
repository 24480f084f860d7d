"""vLLM plugin (entry point group ``vllm.general_plugins``): vLLM loads it in every process of a server."""

import os


def register() -> None:
    """Make vLLM's CPU build accept weight updates; does nothing outside a CPU run of verl."""
    if os.environ.get("VERL_PLATFORM", "").strip().lower() != "cpu":
        return
    from verl_comprl.platform.patches import keep_vllm_cpu_weights

    keep_vllm_cpu_weights()
