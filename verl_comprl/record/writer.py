"""Writes step files from a thread of its own; records that cannot be written are counted, logged once and survived."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from verl_comprl.record.lines import encode
from verl_comprl.record.redaction import redactor
from verl_comprl.record.step_files import StepFiles

logger = logging.getLogger(__name__)

MOST_WAITING = 16
"""Writes that may wait for a slow disk; further ones are lost, or their records would fill the memory."""

SETTLE_SECONDS = 10.0
"""How long a checkpoint waits for its records."""

Records = Iterable[Mapping[str, Any]]


class RecordWriter:
    """Writer of one folder; to be called from one thread."""

    def __init__(self, folder: Path, keep_steps: int | None = None) -> None:
        """Write into ``folder``, which is made when there is something to write.

        Args:
            folder: For the step files.
            keep_steps: Files to keep, the latest ones; None keeps all.
        """
        self.files = StepFiles(folder)
        self._keep_steps = keep_steps
        self._waiting: list[tuple[Future[None], int]] = []
        """Writes that have not ended, each with its number of records."""
        self._closed = False
        self._orders: SimpleQueue[tuple[Future[None], Callable[[], None]] | None] = SimpleQueue()
        # Not an executor: Python waits for the threads of one when it exits, and this one may hang for ever, in
        # TransferQueue or in the disk.
        threading.Thread(target=self._work, name=f"record-{folder.name}", daemon=True).start()
        self._redact = redactor()
        self.lost = 0
        """Records that could not be written."""
        self.seconds = 0.0
        """Time of the processor that writing took, in the thread."""

    def write(self, step: int, records: Records | Callable[[], Records], count: int) -> None:
        """Add records to the file of a step; returns at once and never raises.

        Args:
            step: Actor step.
            records: The records, or a function that returns them and is called in the thread.
            count: Their number, which is lost if anything fails.
        """
        self._waiting = [(written, number) for written, number in self._waiting if not written.done()]
        if self._closed or len(self._waiting) >= MOST_WAITING:
            self._lose(count, "it is closed" if self._closed else f"{MOST_WAITING} writes are waiting for the disk")
            return
        written: Future[None] = Future()
        self._waiting.append((written, count))
        self._orders.put((written, partial(self._write, step, records, count)))

    def settle(self) -> None:
        """Wait for what is being written, so that a checkpoint has no episode or call that is on no record.

        Not for ever: where the disk is that slow, a run that is killed next loses these records, and no training.
        """
        wait([written for written, _ in self._waiting], SETTLE_SECONDS)

    def close(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for what is being written; nothing can be written afterwards."""
        self._closed = True
        wait([written for written, _ in self._waiting], timeout)
        for written, count in self._waiting:
            if written.cancel():  # it has not begun
                self._lose(count, f"it was closed after {timeout:g} s, before they were written")
        self._waiting = []
        self._orders.put(None)

    def _work(self) -> None:
        while order := self._orders.get():
            written, write = order
            if written.set_running_or_notify_cancel():
                write()
                written.set_result(None)

    def _write(self, step: int, records: Records | Callable[[], Records], count: int) -> None:
        started = time.thread_time()
        try:
            found = records() if callable(records) else records
            lines = [self._redact(encode(record)) + b"\n" for record in found]
            if lines:
                self.files.append(step, lines)
                self.files.keep(self._keep_steps)
        except Exception as error:  # the disk, or what the records come from: neither may cost the run anything else
            self._lose(count, repr(error))
        self.seconds += time.thread_time() - started

    def _lose(self, count: int, why: str) -> None:
        if not self.lost:
            logger.warning("%s lacks records (further ones are counted only): %s", self.files.folder, why)
        self.lost += count
