"""Reads what this package has logged in a test."""

import logging

import pytest


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return the package's records: asyncio may complain about a task of an earlier test."""
    return [record for record in caplog.records if record.name.startswith("verl_comprl.")]
