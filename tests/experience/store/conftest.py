"""A double of a Qdrant server, and a bank on it."""

import uuid
from collections.abc import Iterator

import pytest
from qdrant_double import QdrantDouble

from verl_comprl.experience import BankConfig


@pytest.fixture
def double() -> Iterator[QdrantDouble]:
    server = QdrantDouble().start()
    yield server
    server.close()


@pytest.fixture
def config(double: QdrantDouble) -> BankConfig:
    # Patient: a busy machine may keep the double from answering for seconds, and only test_timeouts is about that.
    return BankConfig(url=double.url, collection=f"run-{uuid.uuid4().hex[:8]}", max_wait_ms=0, timeout_seconds=60)
