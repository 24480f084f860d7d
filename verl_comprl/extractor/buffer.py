"""Training buffer of the extractor: generation records, rewards of their uses, and samples waiting for a full batch.

Owns the path from rewards to utilities, samples and batches. Outcomes and format failures wait apart: outcomes that do
not fit into a batch wait for the next one; of the failures only the latest wait, and those dropped are counted.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

from verl_comprl.algorithm.utility import extractor_advantages, mean_utilities, training_weight
from verl_comprl.extractor.draw import draw
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord, read_records, write_records

FORMAT_FAILURE_SHARE = 0.25
"""Largest share of a batch that is format failures. A model that has not learned its format yet produces many more of
them than outcomes, and each says the same."""

WAITING_BATCHES = 16
"""Batches of outcomes that wait at most, besides those of the latest step; the oldest make room. There are more where
updates take longer than samples need to come, or where learning has stopped after failures, and each keeps its
record."""

KEEP_UNREFERENCED_STEPS = 20
"""Actor steps for which an unreferenced record is kept: a running episode may still be using its text, for example an
answer or an entry that has been replaced."""


@dataclass(frozen=True)
class Sample:
    """One training sample: a record and its utility, the mean reward over one collection step, or its format reward."""

    record_id: str
    reward: float


@dataclass(frozen=True)
class TrainingBatch:
    """A full CISPO batch: records and their advantages ``Â_i``, which include the weights of Eq. 7."""

    records: list[GenerationRecord]
    rewards: list[float]
    weights: list[float]
    advantages: list[float]


class TrainingBuffer:
    """Keeps records, uses and samples; to be used from one event loop."""

    def __init__(
        self,
        batch_size: int,
        *,
        alpha: float,
        cooldown: float,
        max_staleness: int | None = None,
        max_answer_share: float = 1.0,
    ) -> None:
        """Create an empty buffer.

        Args:
            batch_size: Number of samples in one extractor update.
            alpha: ``α`` of Eq. 7.
            cooldown: ``δ`` of Eq. 7, in actor steps.
            max_staleness: Number of weight versions by which a record may lag behind the model; None for no limit.
            max_answer_share: Largest share of a batch that is answers, as long as samples of entries can take their
                place.
        """
        self._batch_size = batch_size
        self._alpha = alpha
        self._cooldown = cooldown
        self._records: dict[str, GenerationRecord] = {}
        self._unreferenced: dict[str, int] = {}  # record id → step since when
        self._uses: list[tuple[str, float]] = []
        self._samples: list[Sample] = []  # outcomes, oldest first
        self._failures: list[Sample] = []  # the latest format failures, no more than a batch may hold
        self._max_failures = int(batch_size * FORMAT_FAILURE_SHARE)
        self._max_staleness = max_staleness
        self._max_answers = int(batch_size * max_answer_share)
        self._batch: list[Sample] = []  # samples that are being trained on
        self._batch_step = 0  # t of Eq. 7 of that batch
        self.stale = 0
        """Number of samples left out because their records lagged too far behind."""
        self.dropped_failures = 0
        """Number of format failures that newer ones replaced before they were trained on."""
        self.dropped_outcomes = 0
        """Number of outcomes that were not trained on, since too many waited."""

    def __len__(self) -> int:
        """Return the number of waiting samples, including format failures."""
        return len(self._samples) + len(self._failures)

    @property
    def record_count(self) -> int:
        """Number of records."""
        return len(self._records)

    def add(self, record: GenerationRecord) -> None:
        """Add a record; one that is already known is left unchanged, with its training counts."""
        self._records.setdefault(record.id, record)

    def record_reward(self, record_id: str, reward: float) -> bool:
        """Add the reward of one use of a record; returns whether the record is known (imported text has none)."""
        if record_id not in self._records:
            return False
        self._uses.append((record_id, reward))
        return True

    def add_format_failure(self, record: GenerationRecord, reward: float) -> None:
        """Add the record of an answer that could not be parsed, and its sample.

        It needs no collection step: nothing can use it, so that this is its only reward.
        """
        self.add(replace(record, format_failure=True))
        self._failures.append(Sample(record.id, reward))
        if len(self._failures) > self._max_failures:
            oldest = self._failures.pop(0)
            if all(sample is not oldest for sample in self._batch):
                self.dropped_failures += 1
                # Nothing can use it, so it need not wait for `forget`: there may be hundreds in every step. But a merge
                # that a resume repeats may have given the same answer again, which is the same record.
                if all(sample.record_id != oldest.record_id for sample in (*self._failures, *self._batch)):
                    self._records.pop(oldest.record_id, None)

    def collect(self) -> int:
        """Close a collection step: each record used since the last one gets one sample. Returns their number.

        What counts is what was reported since then. With an asynchronous trainer that is not what the actor's step was
        trained on: episodes of one prompt may fall into two collections, and dropped ones count too.
        """
        utilities = mean_utilities(self._uses)
        self._uses.clear()
        # Uses are in the order in which episodes ended, and successes end first: batches taken in that order would have
        # only successes, then only failures, and nothing to compare.
        order = sorted(utilities, key=draw)
        self._make_room()
        self._samples += [Sample(record_id, utilities[record_id]) for record_id in order]
        return len(utilities)

    def _make_room(self) -> None:
        excess = len(self._samples) - WAITING_BATCHES * self._batch_size
        if excess <= 0:
            return
        in_training = {id(sample) for sample in self._batch}
        waiting = (id(sample) for sample in self._samples if id(sample) not in in_training)
        oldest = set(islice(waiting, excess))
        self._samples = [sample for sample in self._samples if id(sample) not in oldest]
        self.dropped_outcomes += len(oldest)

    def next_batch(self, step: int, version: int = 0) -> TrainingBatch | None:
        """Return a full batch without removing it, or ``None``; :meth:`trained` removes it.

        Args:
            step: Current actor step, ``t`` of Eq. 7.
            version: Version of the weights to train; samples whose records lag too far behind are dropped and counted.
        """
        self.dropped_failures += self._replaced()  # the update with the batch before may have failed
        if self._max_staleness is not None:
            self._drop_stale(version - self._max_staleness)
        self._batch = self._choose()
        if not self._batch:
            return None
        self._batch_step = step
        weights, _ = self._weigh(self._batch)
        rewards = [sample.reward for sample in self._batch]
        records = [self._records[sample.record_id] for sample in self._batch]
        advantages = extractor_advantages(
            rewards, weights, [record.kind for record in records], [record.format_failure for record in records]
        )
        return TrainingBatch(records, rewards, weights, advantages.tolist())

    def _replaced(self) -> int:
        """Return the number of format failures of the batch that newer ones have replaced since it was taken."""
        waiting = {id(sample) for sample in (*self._samples, *self._failures)}
        return sum(id(sample) not in waiting for sample in self._batch)

    def _drop_stale(self, oldest: int) -> None:
        before = len(self)
        self._samples = [s for s in self._samples if self._records[s.record_id].weight_version >= oldest]
        self._failures = [s for s in self._failures if self._records[s.record_id].weight_version >= oldest]
        self.stale += before - len(self)

    def _choose(self) -> list[Sample]:
        """Return the samples of the next batch, or none if it would not be full.

        All waiting format failures, which are few enough, and the oldest outcomes. Answers, unreadable ones among
        them, get more than their share only if there are too few samples of entries for the rest.
        """
        needed = self._batch_size - len(self._failures)
        # A smaller batch would change the baselines and the scale of the update.
        if len(self._samples) < needed:
            return []
        answers = [self._records[sample.record_id].kind is CallKind.ANSWER for sample in self._samples]
        unreadable = sum(self._records[sample.record_id].kind is CallKind.ANSWER for sample in self._failures)
        room_for_answers = max(0, self._max_answers - unreadable, needed - answers.count(False))
        chosen: list[Sample] = []
        for sample, is_answer in zip(self._samples, answers, strict=True):
            if len(chosen) < needed and (room_for_answers or not is_answer):
                chosen.append(sample)
                room_for_answers -= is_answer
        return chosen + self._failures

    def trained(self) -> list[str]:
        """Remove the batch of the last :meth:`next_batch` and update the training counts of its records.

        Returns:
            The record id of each sample that was trained on; a record may appear twice.
        """
        batch, self._batch = self._batch, []
        weights, records = self._weigh(batch)
        self._records.update(records)
        # By identity: a record may have two samples with the same reward. Format failures of the batch may be gone.
        removed = {id(sample) for sample in batch}
        self._samples = [sample for sample in self._samples if id(sample) not in removed]
        self._failures = [sample for sample in self._failures if id(sample) not in removed]
        return [sample.record_id for sample, weight in zip(batch, weights, strict=True) if weight > 0]

    def _weigh(self, samples: list[Sample]) -> tuple[list[float], dict[str, GenerationRecord]]:
        """Return the weight of each sample (Eq. 7), and the records as they are after training on them.

        A sample of weight 0 is not trained on, so it neither counts nor extends the cooldown. An outcome that is the
        only one of its kind has weight 0 as well: it is its own baseline, so that whatever its reward, it teaches
        nothing. Outcomes of a kind whose rewards are all equal have advantage 0, too, but they were compared, and
        count as in the paper.
        """
        weights: list[float] = []
        records: dict[str, GenerationRecord] = {}
        of_samples = [self._records[sample.record_id] for sample in samples]
        outcomes = Counter(record.kind for record in of_samples if not record.format_failure)
        for sample in samples:
            record = records.get(sample.record_id) or self._records[sample.record_id]
            # ``t`` is the actor step of this update, not the one at which the sample was collected: a record gets one
            # sample per collection step, so with the latter a cooldown of 1 would never take effect. Several updates
            # can happen within one actor step, and samples of one record can wait for the same batch.
            weight = training_weight(
                self._batch_step, record.last_trained, record.train_count, alpha=self._alpha, cooldown=self._cooldown
            )
            if not record.format_failure and outcomes[record.kind] == 1:
                weight = 0.0
            if weight > 0:
                counted = {"train_count": record.train_count + 1, "last_trained": self._batch_step}
                records[sample.record_id] = replace(record, **counted)
            weights.append(weight)
        return weights, records

    def forget(self, referenced: Iterable[str], step: int) -> None:
        """Drop records that no bank entry (``referenced``), sample or use has referred to for some steps."""
        samples = (*self._samples, *self._failures, *self._batch)
        keep = {*referenced, *(sample.record_id for sample in samples), *(use[0] for use in self._uses)}
        self._unreferenced = {key: self._unreferenced.get(key, step) for key in self._records.keys() - keep}
        for key in [key for key, since in self._unreferenced.items() if step - since >= KEEP_UNREFERENCED_STEPS]:
            del self._records[key], self._unreferenced[key]

    def save(self, folder: Path) -> None:
        """Write the buffer into ``folder``; may run in a thread while records and uses are added."""
        folder.mkdir(parents=True, exist_ok=True)
        # Copy uses and samples before the records. A record that is added meanwhile is harmless; a use or sample whose
        # record is missing from the file would fail after a restore.
        uses, samples, failures = list(self._uses), list(self._samples), list(self._failures)
        records = dict(self._records)
        # A failure that came meanwhile may have replaced the oldest, and removed its record.
        failures = [sample for sample in failures if sample.record_id in records]
        state = {
            "uses": uses,
            "samples": [asdict(sample) for sample in samples],
            "failures": [asdict(sample) for sample in failures],
            "stale": self.stale,
            "dropped_failures": self.dropped_failures + self._replaced(),  # their update is not in a checkpoint
            "dropped_outcomes": self.dropped_outcomes,
            "unreferenced": dict(self._unreferenced),
        }
        write_records(folder / "records.parquet", list(records.values()))
        (folder / "samples.json").write_text(json.dumps(state), encoding="utf-8")

    def restore(self, folder: Path, *, rewards: bool = True) -> None:
        """Replace the content with what :meth:`save` wrote.

        Args:
            folder: Where.
            rewards: Whether uses and samples are wanted, too, or only the records.

        Raises:
            ValueError: If it was written by a release that kept other fields.
        """
        self._records = {record.id: record for record in read_records(folder / "records.parquet")}
        state = json.loads((folder / "samples.json").read_text(encoding="utf-8"))
        self._uses = [(record_id, reward) for record_id, reward in state["uses"]]
        self._samples = [Sample(**sample) for sample in state["samples"]]
        failures = [Sample(**sample) for sample in state["failures"]]
        if not rewards:
            self._uses, self._samples, failures = [], [], []
        self._failures = failures[max(0, len(failures) - self._max_failures) :]  # the batch may be smaller now
        self._batch = []
        self._unreferenced = state.get("unreferenced", {})  # older checkpoints have none; it costs memory, no result
        self.stale = state["stale"]
        self.dropped_failures = state["dropped_failures"]
        self.dropped_outcomes = state.get("dropped_outcomes", 0)
