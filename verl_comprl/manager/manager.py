"""The experience manager ``H``: owns bank, distillation queue and training buffer, and works in the background.

Whatever guides an episode or learns from one passes through here. The actor waits for it only as long as a retrieval
takes. Plain asyncio: a run wraps it in a Ray actor (``manager.actor``), tests call it directly.
"""

import asyncio
import contextlib
import json
import logging
import random
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_comprl.algorithm.utility import gini
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import ExperienceBank, ParsedAnswer, StoreError, sanitize
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.schema import DistillationRequest, Experience
from verl_comprl.extractor.buffer import TrainingBatch, TrainingBuffer
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.credit import Credit
from verl_comprl.extractor.generation_record import GenerationRecord
from verl_comprl.extractor.queue import DistillationQueue
from verl_comprl.manager.merging import MergePass
from verl_comprl.manager.messages import MAX_CHARS, NOTHING_FOUND, UNAVAILABLE, Answer, EpisodeReport, Guide

logger = logging.getLogger(__name__)

FREE_WINDOW = 256
"""Outcomes of the free half, per task, that an entry's success rate is compared with: the latest ones."""

REMEMBERED_STEPS = 100
"""Steps for which a reported episode is remembered, so that a second report of it is ignored."""


@dataclass
class _Totals:
    operations: Counter[str] = field(default_factory=Counter)
    parse_failures: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    guides: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    merges: int = 0


class ExperienceManager:
    """Bank, queue and buffer behind one set of asynchronous methods."""

    def __init__(self, config: ComprlConfig, bank: ExperienceBank) -> None:
        """Take over an open bank. Retrieval works at once; distillation, merging and answers need :meth:`start`."""
        self._config = config
        self._bank = bank
        self._calls: ExtractorCalls | None = None
        self._queue = DistillationQueue(config.queue)
        learning = config.extractor
        self._buffer = TrainingBuffer(
            learning.batch_size, alpha=learning.alpha, cooldown=learning.cooldown, max_staleness=learning.max_staleness
        )
        self._credit = Credit(self._buffer, relative=learning.utility == "relative")
        self._totals = _Totals()
        self._random = random.Random()
        self._reported: dict[str, int] = {}
        self._free_outcomes: dict[str, deque[bool]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Keeps snapshots consistent. Whatever changes bank, queue and buffer together holds the *read* side, so that
        # such changes do not wait for one another; only a snapshot holds the write side.
        self._commit = ReadWriteLock()
        self._merging = False
        self._step = 0

    def start(self, calls: ExtractorCalls) -> None:
        """Connect the extractor and start the distillation workers, unless this arm does not distil."""
        self._calls = calls
        for _ in range(self._config.extractor.distillation_workers if self._config.extractor.distill else 0):
            self._spawn(self._work())

    # ---- during an episode ----

    async def guide(self, query: str, task: str, environment: str, *, read_only: bool = False) -> Guide:
        """Retrieve one entry for the start of an episode."""
        explores = not read_only and self._random.random() < self._config.exploration
        retrieval = await self._bank.retrieve(
            query,
            task=task,
            environment=environment,
            read_only=read_only,
            at_random=self._random if explores else None,
            evaluation_id=self._evaluation_id(read_only),
        )
        if not read_only:
            self._totals.guides[retrieval.status] += 1
            self._totals.guides["explored"] += explores and retrieval.entry is not None
        entry = retrieval.entry
        if entry is None:
            return Guide(retrieval.status)
        return Guide(retrieval.status, sanitize(entry.text, MAX_CHARS), entry.id, entry.record_id or None)

    async def search_and_ask(self, query: str, task: str, environment: str, *, read_only: bool = False) -> Answer:
        """Answer an actor's question from the best entry for it; never raises."""
        try:
            async with asyncio.timeout(self._config.search_and_ask.timeout):
                answer = await self._answer(query, task, environment, read_only)
        except Exception as error:
            self._fail("search_and_ask", error)
            answer = Answer("failed", UNAVAILABLE)
        if not read_only:
            self._totals.answers[answer.status] += 1
        return answer

    async def _answer(self, query: str, task: str, environment: str, read_only: bool) -> Answer:
        retrieval = await self._bank.retrieve(
            query, task=task, environment=environment, read_only=read_only, evaluation_id=self._evaluation_id(read_only)
        )
        if retrieval.entry is None:
            return Answer(retrieval.status, NOTHING_FOUND if retrieval.status == "nothing" else UNAVAILABLE)
        entry = retrieval.entry
        written, record = await self._extractor.answer(entry.text, query, self._step)
        text = sanitize(written or "", MAX_CHARS)
        if not read_only:
            self._buffer.add(record)
            if not text:
                self._buffer.record_reward(record.id, self._config.extractor.format_failure_reward)
        if not text:
            return Answer("malformed", NOTHING_FOUND)
        entry_record_id = entry.record_id if self._config.search_and_ask.reward_entry else None
        return Answer("answered", text, record.id, entry.id, sanitize(entry.text, MAX_CHARS), entry_record_id or None)

    def _evaluation_id(self, read_only: bool) -> str:
        """Name the running evaluation, "" in training.

        Tasks often share one goal text. If an evaluation counted no retrievals at all, all its episodes would get the
        same entry; so it counts under its own name, apart from training.
        """
        return f"step {self._step}" if read_only else ""

    async def report(self, episode: EpisodeReport) -> None:
        """Take a finished training episode: credit its outcome to the records it read and queue it for distillation."""
        request, success = episode.request, episode.request.outcome.success
        async with self._commit.read():
            if request.id in self._reported:
                return
            self._reported[request.id] = request.step
            judged = episode.judgement
            if judged:
                self._totals.verdicts[judged.verdict] += 1
            for record_id in episode.record_ids if episode.guided or judged else ():
                bonus = judged.score if judged and judged.record_id == record_id else 0.0
                self._credit.record_outcome(
                    record_id, episode.prompt, request.task, success, request.step, judged=bonus
                )
            if episode.guided:
                self._bank.record_outcome(request.experience_ids[:1], success, task=request.task)
                self._bank.record_outcome(request.experience_ids[1:], success, task=request.task, asked=True)
            else:
                self._credit.record_free_outcome(episode.prompt, success, request.step)
                self._free_outcomes.setdefault(request.task, deque(maxlen=FREE_WINDOW)).append(success)
            if self._config.extractor.distill:
                self._queue.put(request)

    # ---- background ----

    async def _work(self) -> None:
        while True:
            request = await self._queue.get()
            try:
                similar = await self._similar(request)
                answer, record = await self._extractor.distill(request, [entry.text for entry in similar])
                async with self._commit.read():
                    await self._apply_distillation(request, similar, answer, record)
                    self._queue.acknowledge(request)
            except Exception as error:
                self._fail("distill", error)
                self._queue.fail(request, f"{type(error).__name__}: {error}")

    async def _similar(self, request: DistillationRequest) -> list[Experience]:
        """Return entries close to goal and outcome; none if that fails: the episode is distilled with what there is."""
        limit = self._config.extractor.list_nearest
        if not limit:
            return []
        try:
            return await self._bank.nearest(
                f"{request.goal}\nOutcome: {'success' if request.outcome.success else 'failure'}",
                limit,
                task=request.task,
                environment=request.environment,
                exclude=request.experience_ids,
            )
        except Exception as error:
            self._fail("list_nearest", error)
            return []

    async def _apply_distillation(
        self,
        request: DistillationRequest,
        similar: Sequence[Experience],
        answer: ParsedAnswer,
        record: GenerationRecord,
    ) -> None:
        if answer.format_ok:
            # The bank first, the record after it: if the write fails the episode is distilled again, and only the
            # record of the text that is really in the bank may be trained on.
            await self._bank.apply(
                answer.operations,
                call_id=record.id,
                listed=[*request.experience_ids, *(entry.id for entry in similar)],
                task=request.task,
                environment=request.environment,
                step=request.step,
                weight_version=record.weight_version,
                source_trajectory=request.id,
                source_success=request.outcome.success,
            )
        self._note(answer, record)

    async def merge(self) -> bool:
        """Start a merge pass over the bank in the background; ``False`` if one is still running."""
        if self._merging:
            return False
        self._merging = True
        self._spawn(self._merge_pass())
        return True

    async def _merge_pass(self) -> None:
        try:
            await MergePass(
                config=self._config,
                bank=self._bank,
                calls=self._extractor,
                commit=self._commit,
                step=lambda: self._step,
                free_outcomes=self._free_outcomes,
                note=self._note,
                fail=self._fail,
            ).run()
            self._totals.merges += 1
        except Exception as error:
            self._fail("merge", error)
        finally:
            self._merging = False

    def _note(self, answer: ParsedAnswer, record: GenerationRecord) -> None:
        """Keep a call's record. An answer that cannot be parsed wrote nothing to be used: it gets the format reward."""
        self._buffer.add(record)
        self._totals.parse_failures.update(error.kind for error in answer.errors)
        if not answer.format_ok:
            self._buffer.record_reward(record.id, self._config.extractor.format_failure_reward)

    # ---- training ----

    async def collect(self, step: int) -> dict[str, float]:
        """Close an actor step: turn its outcomes into training samples. Returns the step's metrics."""
        self._step = step
        self._credit.flush_pending(step, self._free_outcomes)
        samples = self._buffer.collect(step)
        try:
            await self._bank.retire(self._free_outcomes)
        except StoreError as error:
            self._fail("retire", error)
        self._buffer.forget((entry.record_id for entry in self._bank.entries()), step)
        self._reported = {key: at for key, at in self._reported.items() if at >= step - REMEMBERED_STEPS}
        return {"extractor/samples": float(samples), **self._metrics()}

    async def next_batch(self, version: int = 0) -> TrainingBatch | None:
        """Return a full CISPO batch for weights ``version``, or ``None``."""
        return self._buffer.next_batch(self._step, version)

    async def trained(self) -> None:
        """Count the batch of :meth:`next_batch` as trained, in its records and in the entries they wrote."""
        self._bank.record_training(self._buffer.trained(), self._step)

    # ---- state ----

    def _metrics(self) -> dict[str, float]:
        statistics = self._bank.statistics()
        metrics = {f"bank/{name}": float(value) for name, value in statistics.items() if not isinstance(value, dict)}
        entries = self._bank.entries()
        if entries:
            metrics["bank/age"] = self._step - sum(entry.created_step for entry in entries) / len(entries)
            metrics["bank/retrieval_gini"] = gini([entry.retrievals for entry in entries])
        for name, counter in (
            ("operations", self._operations()),
            ("parse_failures", self._totals.parse_failures),
            ("failures", self._totals.failures),
            ("guides", self._totals.guides),
            ("answers", self._totals.answers),
            ("verdicts", self._totals.verdicts),
        ):
            metrics |= {f"{name}/{kind}": float(count) for kind, count in counter.items()}
        return metrics | {
            "queue/depth": float(len(self._queue)),
            "queue/lag": float(self._step - oldest if (oldest := self._queue.oldest_step) is not None else 0),
            "queue/on_disk": float(self._queue.on_disk),
            **{f"queue/{name}": float(count) for name, count in self._queue.counts.items()},
            "buffer/samples": float(len(self._buffer)),
            "buffer/records": float(self._buffer.record_count),
            "buffer/stale": float(self._buffer.stale),
            "buffer/waiting": float(len(self._credit)),
            "merge/passes": float(self._totals.merges),
        }

    def _operations(self) -> Counter[str]:
        """Return the operations of the whole run; the bank itself counts from its opening."""
        return self._totals.operations + Counter(self._bank.statistics()["operations"])

    async def metrics(self) -> dict[str, float]:
        """Return all counters of the run (retrievals: since the bank was opened)."""
        return self._metrics()

    async def drain(self, timeout: float) -> bool:
        """Wait until the queue is empty; ``False`` if it is not after ``timeout`` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._queue.wait_idle()
        except TimeoutError:
            return False
        return True

    async def save(self, folder: str) -> None:
        """Write bank, queue, buffer and counters into ``folder``."""
        path = Path(folder)
        async with self._commit.write():
            path.mkdir(parents=True, exist_ok=True)
            await self._bank.flush()
            await self._bank.save(path / "bank")
            self._queue.save(path / "queue.jsonl")
            await asyncio.to_thread(self._buffer.save, path / "buffer")  # retrieval continues meanwhile
            totals = vars(self._totals) | {"operations": self._operations()}
            state = {
                "step": self._step,
                "totals": totals,
                "queue": self._queue.counts,
                "reported": self._reported,
                "credit": self._credit.state(),
                "free_outcomes": {task: list(outcomes) for task, outcomes in self._free_outcomes.items()},
            }
            (path / "manager.json").write_text(json.dumps(state), encoding="utf-8")

    async def restore(self, folder: str) -> None:
        """Replace the state with what :meth:`save` wrote."""
        path = Path(folder)
        state = json.loads((path / "manager.json").read_text(encoding="utf-8"))
        async with self._commit.write():
            await self._bank.restore(path / "bank")
            self._buffer.restore(path / "buffer")
            self._step = state["step"]
            self._reported = state["reported"]
            self._credit.restore(state["credit"])
            self._free_outcomes = {
                task: deque(outcomes, maxlen=FREE_WINDOW) for task, outcomes in state["free_outcomes"].items()
            }
            merges = state["totals"].pop("merges")
            self._totals = _Totals(**{name: Counter(counts) for name, counts in state["totals"].items()}, merges=merges)
            self._queue.counts.update(state["queue"])
            self._queue.restore(path / "queue.jsonl")

    async def close(self) -> None:
        """Stop the workers and close the bank. Pending requests are only in the last snapshot."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._bank.close()

    @property
    def _extractor(self) -> ExtractorCalls:
        if self._calls is None:
            raise RuntimeError("the extractor is not connected yet")
        return self._calls

    def _spawn(self, coroutine: Any) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _fail(self, what: str, error: Exception) -> None:
        """Count a failure and log the first of each kind: a server that is down would otherwise fill the log."""
        kind = f"{what}:{type(error).__name__}"
        if not self._totals.failures[kind]:
            logger.warning("%s failed (further ones are counted only): %s", what, error, exc_info=error)
        self._totals.failures[kind] += 1
