"""Episodes of a run: takes the workers' records out of TransferQueue and writes them to ``episodes/``.

Owns the trainer's side. ``rollout/recorder.py`` sends the records, which wait in TransferQueue, and in its part of a
checkpoint, until their episode is trained; docs/run_folder.md has the format.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import transfer_queue as tq

from verl_comprl.config.tree import RecordConfig
from verl_comprl.record.reader import EPISODES
from verl_comprl.record.writer import RecordWriter
from verl_comprl.rollout.recorder import EVALUATION_TAG, FAILED_TAG, FIELD, PARTITION, unpack
from verl_comprl.trainer.step.keys import TRAIN, list_keys, prompt_of

CLOSE_SECONDS = 60.0
"""Limit of writing the last steps at the end of a run."""


class EpisodeLog:
    """Episodes of one run; with recording switched off every method does nothing."""

    def __init__(self, folder: Path, settings: RecordConfig) -> None:
        """Write into ``folder``, the run's."""
        self.writer = RecordWriter(folder / EPISODES, settings.keep_steps) if settings.enabled else None
        self._trained: dict[str, float] = {}
        """Advantages of the episodes that the present step was trained on so far, by id."""
        self._taken: set[str] = set()
        """Keys that the thread has not yet removed from TransferQueue."""
        self._missing = 0

    def trained(self, episodes: Sequence[str], advantages: Sequence[float]) -> None:
        """Note on which episodes an update is trained, and with which advantages."""
        self._trained.update(zip(episodes, advantages, strict=True))

    def take(self, step: int) -> None:
        """Write what has been trained on, evaluated, dropped or failed since the last call; does not wait for it.

        Before a checkpoint of the step, which would hold its records otherwise.
        """
        trained, self._trained = self._trained, {}
        if self.writer is None:
            return
        waiting, alive = self._waiting()
        states = {key: _status(key, tag, trained, alive) for key, tag in waiting.items()}
        states = {key: status for key, status in states.items() if status}
        self._missing += len(trained.keys() - states.keys())
        self._write(step, states, trained)

    def leave(self, step: int) -> None:
        """Write the training episodes that have ended by themselves as dropped: a stop has left their step.

        The experience manager may have counted and distilled them. Never raises: a checkpoint is to be written.

        Args:
            step: Whose file gets them.
        """
        if self.writer is None:
            return
        try:
            waiting, _ = self._waiting()
        except Exception as error:
            print(f"episodes of the step that is left are not recorded: {error!r}", flush=True)
            return
        ended = [key for key, tag in waiting.items() if not (tag.get(FAILED_TAG) or tag.get(EVALUATION_TAG))]
        self._write(step, dict.fromkeys(ended, "dropped"), {})

    def _waiting(self) -> tuple[dict[str, Mapping[str, Any]], set[str]]:
        """Return the tags of the records that nobody has taken by their keys, and the prompts that are not trained."""
        # Before the listing: the thread may remove what is listed, and forget it, before it is looked at here.
        taken = self._taken.copy()
        # One listing: a prompt that is submitted after it has no episode in it either.
        partitions = list_keys()
        waiting = {key: tag for key, tag in partitions.get(PARTITION, {}).items() if tag and key not in taken}
        return waiting, {prompt_of(key) for key in partitions.get(TRAIN, {})}

    def _write(self, step: int, states: Mapping[str, str], trained: Mapping[str, float]) -> None:
        if states and self.writer:
            self._taken |= states.keys()
            self.writer.write(step, lambda: self._records(step, states, trained), len(states))

    def metrics(self) -> dict[str, float]:
        """Return the episodes of which there is no record, since the run was started."""
        lost = self._missing + (self.writer.lost if self.writer else 0)
        return {"comprl/record/episodes_lost": float(lost)}

    def settle(self) -> None:
        """Wait for what is being written; see :meth:`~verl_comprl.record.writer.RecordWriter.settle`."""
        if self.writer:
            self.writer.settle()

    def close(self, step: int) -> None:
        """Wait for what is being written; ``step`` is one that a stop has ended after some of its updates, if any."""
        if self._trained:
            with suppress(Exception):  # whatever has ended the run, which matters more
                self.take(step)
        if self.writer:
            self.writer.close(CLOSE_SECONDS)

    def _records(self, step: int, states: Mapping[str, str], trained: Mapping[str, float]) -> Iterator[dict[str, Any]]:
        """Take the records from TransferQueue; in the writer's thread."""
        keys = sorted(states)
        try:
            packed = tq.kv_batch_get(keys=keys, partition_id=PARTITION, select_fields=[FIELD])[FIELD].unbind(0)
        finally:
            # Also if they could not be read: they would fill its storage.
            tq.kv_clear(keys=keys, partition_id=PARTITION)
            self._taken.difference_update(keys)
        for key, data in zip(keys, packed, strict=True):
            record: dict[str, Any] = orjson.loads(unpack(data))
            yield record | {"status": states[key], "step": step, "advantage": trained.get(key)}


def _status(key: str, tag: Mapping[str, Any], trained: Mapping[str, float], alive: set[str]) -> str:
    """Return what became of an episode; "" if it waits to be trained on."""
    if tag.get(FAILED_TAG):
        return "failed"
    if tag.get(EVALUATION_TAG):
        return "evaluated"
    if key in trained:
        return "trained"
    return "" if prompt_of(key) in alive else "dropped"
