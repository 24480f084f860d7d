"""Processes of tests that import verl and vLLM: the first one of a session does, and the others find them imported."""

import multiprocessing
from multiprocessing.context import ForkServerContext

MODULES = [
    "verl.workers.rollout.vllm_rollout.bucketed_weight_transfer",
    "verl_comprl.platform.gloo_engine",
    "verl_comprl.trainer.extractor.server_adapter",
]


def forked() -> ForkServerContext:
    """Return the context in which to start them; what a test patches does not reach them, nor do its variables.

    Those have the values that they had when the first one was started.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
