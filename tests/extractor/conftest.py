"""Distillation queues in a temporary folder, whose requests are tried again at once."""

from pathlib import Path
from typing import Any

import pytest
from queues import MakeQueue, MakeRequest

from verl_comprl.extractor.config import QueueConfig
from verl_comprl.extractor.queue import DistillationQueue


@pytest.fixture
def make_queue(tmp_path: Path, make_request: MakeRequest) -> MakeQueue:
    """Return a maker of queues, into which it puts requests of these ids."""

    def make(*ids: str, name: str = "queue", recover: bool = False, **settings: Any) -> DistillationQueue:
        config = QueueConfig(**{"folder": str(tmp_path / name), "backoff_seconds": 0.0, **settings})
        queue = DistillationQueue(config, recover=recover)
        for id in ids:
            queue.put(make_request(id))
        return queue

    return make
