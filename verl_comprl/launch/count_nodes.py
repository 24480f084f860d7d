"""Writes into a file how many nodes have joined: ``python -m verl_comprl.launch.count_nodes FILE NODES``.

A process of its own, so that the launcher never loads Ray. Ends when all are there.
"""

import logging
import sys
import time
from pathlib import Path


def main(file: Path, nodes: int) -> None:
    """Count until there are ``nodes``; a node counts as soon as Ray itself takes it for alive."""
    import ray

    while not ray.is_initialized():
        try:
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL)
        except Exception:  # the head is not up yet; the launcher has the limit
            time.sleep(1)
    joined = 0
    while joined < nodes:
        alive = {name for node in ray.nodes() if node["Alive"] for name in node["Resources"]}
        joined = sum(f"comprl_node_{rank}" in alive for rank in range(nodes))
        file.write_text(str(joined))
        time.sleep(0.5)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
