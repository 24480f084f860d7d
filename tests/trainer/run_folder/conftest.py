"""TransferQueue without Ray."""

import pytest
from episode_queue import Queue  # pyright: ignore[reportMissingImports]

from verl_comprl.trainer.run_folder import episode_log
from verl_comprl.trainer.step import keys


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    queue = Queue()
    for module in (episode_log, keys):
        monkeypatch.setattr(module, "tq", queue)
    return queue
