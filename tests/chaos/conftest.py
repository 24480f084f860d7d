"""A folder with models and tasks, for a run of each module."""

from pathlib import Path

import pytest
from running import warm_started, with_tasks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_tasks(tmp_path_factory.mktemp("chaos"), warm_started())
