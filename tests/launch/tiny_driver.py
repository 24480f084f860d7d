"""Stands for the training in the launcher's tests: ``tiny_driver.py REPORT MODE``, on the cluster of ``RAY_ADDRESS``.

Writes what a task on each node sees into REPORT, then ends with code MODE, sleeps, or fails the first time only
(``once``). SIGTERM ends it with 130, as it does a training.
"""

import json
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path

import ray


def look(rank: int, nodes: int, port: int) -> dict[str, object]:
    """Address, variables, and the sum of all ranks over gloo, which connects the nodes with one another."""
    import torch
    import torch.distributed as dist

    rendezvous = f"tcp://{os.environ['HEAD_IP']}:{port}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=nodes)
    total = torch.tensor([float(rank + 1)])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return {"ip": ray.util.get_node_ip_address(), "environment": dict(os.environ), "sum": total.item()}


def main(report: Path, mode: str) -> int:
    ray.init(log_to_driver=False, logging_level=logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))  # after Ray, whose handler exits with 15
    nodes = int(sum(name.startswith("comprl_node_") for name in ray.cluster_resources()))
    head = ray.util.get_node_ip_address()
    with socket.socket() as free:
        free.bind((head, 0))
        port = free.getsockname()[1]
    options = {"num_cpus": 0, "runtime_env": {"env_vars": {"HEAD_IP": head}}}
    tasks = [
        ray.remote(look).options(**options, resources={f"comprl_node_{rank}": 0.1}).remote(rank, nodes, port)
        for rank in range(nodes)
    ]
    seen = ray.get(tasks)
    again = report.exists()
    partial = report.with_suffix(".partial")
    partial.write_text(json.dumps({"driver": dict(os.environ), "nodes": seen, "resources": ray.cluster_resources()}))
    partial.rename(report)
    if mode == "sleep":
        time.sleep(600)
    if mode == "once":
        return 0 if again else 5
    return int(mode)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
