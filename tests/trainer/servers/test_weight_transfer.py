"""verl's sender of weights, when its server has died: in another process, since its limit is for a whole process."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_transfer_without_a_receiver_gives_up(tmp_path: Path) -> None:
    program = f"""
import asyncio, torch, zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender
from verl_comprl.platform.weight_transfers import limit_transfers
limit_transfers(0.2)
for _ in range(2):  # the address is free again
    sender = BucketedWeightSender("ipc://{tmp_path}/socket", bucket_size_mb=1, use_shm=True)
    try:
        asyncio.run(sender.async_send_weights(iter([("weight", torch.ones(3))])))
    except zmq.Again:
        print("gave up")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.stdout == "gave up\n" * 2, done.stderr
