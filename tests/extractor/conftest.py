"""A distillation queue in a temporary folder, which is tried again at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_comprl.extractor.config import QueueConfig
from verl_comprl.extractor.queue import DistillationQueue


@pytest.fixture
def make_queue(tmp_path: Path) -> Callable[..., DistillationQueue]:
    def make(name: str = "queue", *, recover: bool = False, **settings: Any) -> DistillationQueue:
        config = QueueConfig(**{"folder": str(tmp_path / name), "backoff_seconds": 0.0, **settings})
        return DistillationQueue(config, recover=recover)

    return make
