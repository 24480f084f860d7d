"""verl's sender of weights, when its server has died: in another process, since its limit is for a whole process."""

import subprocess
import sys
import tempfile
from collections.abc import Iterator

import pytest


@pytest.fixture
def folder() -> Iterator[str]:
    """A folder with a short path, since a socket's must be short."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield folder


@pytest.mark.slow
def test_a_transfer_without_a_receiver_gives_up(folder: str) -> None:
    program = f"""
import asyncio, torch, zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl_comprl.platform.weight_transfers import limit_transfers
limit_transfers(0.2)
for _ in range(2):  # the address is free again
    sender = BucketedWeightSender("ipc://{folder}/socket", bucket_size_mb=1, use_shm=True)
    try:
        asyncio.run(sender.async_send_weights(iter([("weight", torch.ones(3))])))
    except zmq.Again:
        print("gave up")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stdout == "gave up\n" * 2, done.stderr
