"""The experience manager ``H``: owns bank, distillation queue and training buffer, and works in the background.

Whatever guides an episode or learns from one passes through here. The actor waits for it only as long as a retrieval
takes. Plain asyncio: a run wraps it in a Ray actor (``manager.actor``), tests call it directly.
"""

import asyncio
import contextlib
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.errors import panics_as_errors
from verl_comprl.experience import ExperienceBank, ParsedAnswer, StoreError, sanitize
from verl_comprl.experience.locks import ReadWriteLock
from verl_comprl.experience.updates.planning import ApplyReport
from verl_comprl.extractor.buffer import TrainingBatch, TrainingBuffer
from verl_comprl.extractor.calls import ExtractorCalls
from verl_comprl.extractor.credit import ONE_STEP, Credit, Settling
from verl_comprl.extractor.distillation import outcome_of
from verl_comprl.extractor.draw import is_drawn
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.extractor.queue import DistillationQueue
from verl_comprl.manager.availability import BankAvailability, ExtractorAvailability
from verl_comprl.manager.call_log import CallLog
from verl_comprl.manager.distilling import Distilling
from verl_comprl.manager.finishing import Finishing
from verl_comprl.manager.format_watch import FormatWatch
from verl_comprl.manager.free_half import FreeHalf
from verl_comprl.manager.guides import Guides
from verl_comprl.manager.journal import Journal
from verl_comprl.manager.merging import MergePass
from verl_comprl.manager.messages import MAX_CHARS, NOTHING_FOUND, UNAVAILABLE, Answer, EpisodeReport, Guide
from verl_comprl.manager.metrics import Totals, manager_metrics
from verl_comprl.manager.reported import REPORTED, ReportedEpisodes
from verl_comprl.platform.pauses import episode_clock

logger = logging.getLogger(__name__)


class ExperienceManager:
    """Bank, queue and buffer behind one set of asynchronous methods."""

    def __init__(
        self,
        config: ComprlConfig,
        bank: ExperienceBank,
        *,
        seed: int = 0,
        journal: Path | None = None,
        call_log: CallLog | None = None,
        settling: Settling = ONE_STEP,
        recover: bool = False,
    ) -> None:
        """Take over an open bank. Retrieval works at once; distillation, merging and answers need :meth:`start`.

        Args:
            config: The run's settings.
            bank: The open bank.
            seed: Determines, with the step, what is drawn at random from the bank.
            journal: File of the journal; None keeps none.
            call_log: Records the extractor's calls.
            settling: How long relative rewards wait for the free half of a prompt.
            recover: Take over the distillations that waited when the process before was killed, and the episodes that
                it had counted.
        """
        self._config = config
        self._bank = bank
        self._max_chars = max(MAX_CHARS, config.bank.max_title_chars + 1 + config.bank.max_content_chars)
        self._journal = Journal(journal)
        self._call_log = call_log or CallLog()
        self._calls: ExtractorCalls | None = None
        self.availability = ExtractorAvailability()
        self._bank_availability = BankAvailability(bank.flush)
        self._queue = DistillationQueue(config.queue, recover=recover, finish=Finishing(bank, self._journal))
        learning = config.extractor
        self._buffer = TrainingBuffer(
            learning.batch_size,
            alpha=learning.alpha,
            cooldown=learning.cooldown,
            max_staleness=learning.max_staleness,
            max_answer_share=learning.max_answer_share,
        )
        is_relative, on_reward = learning.utility == "relative", self._call_log.used
        self._credit = Credit(self._buffer, relative=is_relative, settling=settling, on_reward=on_reward)
        self._batch: tuple[TrainingBatch, int] | None = None
        """The latest batch, and the version of the weights that it is for."""
        self._totals = Totals()
        self._format_watch = FormatWatch()
        self._guides = Guides(bank, exploration=config.exploration, per=config.guide_per, fail=self._fail)
        self._reported = ReportedEpisodes(Path(config.queue.folder) / REPORTED, recover=recover)
        self._free_half = FreeHalf()
        self._tasks: set[asyncio.Task[None]] = set()
        # Keeps snapshots consistent. Whatever changes bank, queue and buffer together holds the *read* side, so that
        # such changes do not wait for one another; only a snapshot holds the write side.
        self._commit = ReadWriteLock()
        self._merging = False
        self._seed = seed
        self._enter(0)

    def start(self, calls: ExtractorCalls) -> None:
        """Connect the extractor and start the distillation workers, unless this arm does not distil.

        A merge pass that was running when a restored snapshot was taken is repeated.

        Args:
            calls: Calls of the extractor that wait while it is away (``availability.when_there``).
        """
        self._calls = calls
        calls.on_answer = self._call_log.answered
        if not self._config.extractor.distill:
            self._merging = False  # or none could ever begin
            if waiting := len(self._queue):
                what = "episodes wait to be distilled, which comprl.extractor.distill=False leaves to a later run"
                logger.warning("%d %s; they stay in the queue and in checkpoints", waiting, what)
            return
        distilling = Distilling(
            config=self._config,
            bank=self._bank,
            availability=self._bank_availability,
            queue=self._queue,
            calls=calls,
            commit=self._commit,
            journal=self._journal,
            note=self._note,
            fail=self._fail,
        )
        for _ in range(self._config.extractor.distillation_workers):
            self._spawn(distilling.run())
        if self._merging:
            self._spawn(self._merge_pass())

    # ---- during an episode ----

    async def guide(
        self, query: str, task: str, environment: str, *, prompt: str = "", read_only: bool = False
    ) -> Guide:
        """Retrieve one entry for the start of an episode, which is a rollout of ``prompt``."""
        if read_only:
            retrieval = await self._guides.retrieve(query, task=task, environment=environment, read_only=True)
        else:
            choice = await self._guides.choose(query, task, environment, prompt=prompt)
            retrieval = choice.retrieval
            self._totals.guides[retrieval.status] += 1
            self._totals.guides["explored"] += choice.explored
        if (entry := retrieval.entry) is None:
            return Guide(retrieval.status)
        return Guide(retrieval.status, sanitize(entry.text, self._max_chars), entry.id, entry.record_id or None)

    async def search_and_ask(self, query: str, task: str, environment: str, *, read_only: bool = False) -> Answer:
        """Answer an actor's question from the best entry for it; never raises."""
        try:
            async with episode_clock().timeout(self._config.search_and_ask.timeout):
                found = await self.availability.unless_away(lambda: self._answer(query, task, environment, read_only))
                answer = found or Answer("unavailable", UNAVAILABLE)
        except Exception as error:
            self._fail("search_and_ask", error)
            answer = Answer("failed", UNAVAILABLE)
        if not read_only:
            self._totals.answers[answer.status] += 1
        return answer

    async def _answer(self, query: str, task: str, environment: str, read_only: bool) -> Answer:
        retrieval = await self._bank.retrieve(query, task=task, environment=environment, read_only=read_only)
        if (entry := retrieval.entry) is None:
            return Answer(retrieval.status, NOTHING_FOUND if retrieval.status == "nothing" else UNAVAILABLE)
        with panics_as_errors():
            written, record = await self._extractor.answer(entry.text[: self._max_chars], query, self._step)
        text = sanitize(written or "", MAX_CHARS)
        if not read_only:
            self._keep(record, format_ok=bool(text))
        reward = None if text or read_only else self._format_reward
        self._call_log.finished(record, reward=reward, query=query, entry=entry.id, text=text or None)
        if not text:
            return Answer("malformed", NOTHING_FOUND)
        rewarded = entry.record_id if self._config.search_and_ask.reward_entry else None
        return Answer("answered", text, record.id, entry.id, sanitize(entry.text, self._max_chars), rewarded or None)

    async def report(self, episode: EpisodeReport) -> bool:
        """Take a finished training episode: credit its outcome to the records it read and queue it for distillation.

        Returns:
            True, also for one that has been taken before.
        """
        request, success = episode.request, episode.request.outcome.success
        async with self._commit.read():
            if self._reported.knows(request.id, request.step):
                return True
            learning = self._config.extractor
            # Before it counts: an episode that the queue could not take is in no place, and is reported again.
            if drawn := learning.distill and is_drawn(request.id, learning.distill_share):
                self._queue.put(request)
            self._reported.add(request.id, request.step)
            if learning.distill and not drawn:
                self._totals.distillations["skipped"] += 1
            if judged := episode.judgement:
                self._totals.verdicts[judged.verdict] += 1
            for record_id in episode.record_ids if episode.guided or judged else ():
                bonus = judged.score if judged and judged.record_id == record_id else 0.0
                self._credit.record_outcome(
                    record_id, episode.prompt, request.task, success, self._step, judged=bonus, episode=request.id
                )
            if episode.guided:
                self._bank.record_outcome(request.experience_ids[:1], success, task=request.task)
                self._bank.record_outcome(request.experience_ids[1:], success, task=request.task, asked=True)
                self._free_half.add_use(request)
                self._journal.read(request)
            else:
                self._credit.record_free_outcome(episode.prompt, success, self._step)
                self._free_half.add(request.task, success)
        return True

    # ---- background ----

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
                availability=self._bank_availability,
                calls=self._extractor,
                commit=self._commit,
                step=lambda: self._step,
                note=self._note,
                journal=self._journal,
                fail=self._fail,
            ).run()
            self._totals.merges += 1
        except Exception as error:
            self._fail("merge", error)
        finally:
            self._merging = False

    def _note(
        self,
        answer: ParsedAnswer,
        record: GenerationRecord,
        report: ApplyReport | None = None,
        *,
        listed: Sequence[str] = (),
        episode: str | None = None,
    ) -> None:
        """Count a call's errors and what became of a distilled episode, and keep its record."""
        reward = None if answer.format_ok else self._format_reward
        self._call_log.finished(record, answer, report, listed=listed, reward=reward, episode=episode)
        self._totals.parse_failures.update(error.kind for error in answer.errors)
        if record.kind is CallKind.DISTILL:
            self._totals.distillations[outcome_of(answer, report)] += 1
        if report is None or not report.repeated:  # what a repeated call wrote is not in the bank
            self._keep(record, format_ok=answer.format_ok)

    @property
    def _format_reward(self) -> float | None:
        return self._config.extractor.format_failure_reward if self._config.extractor.train else None

    def _keep(self, record: GenerationRecord, *, format_ok: bool) -> None:
        """Keep a call's record. An answer that cannot be parsed wrote nothing to be used: it gets the format reward.

        Without training nothing would ever take samples out of the buffer, and each keeps its record: a long run would
        run out of memory. So nothing is kept then; outcomes of unknown records are no samples.
        """
        self._format_watch.note(format_ok=format_ok)
        if not self._config.extractor.train:
            return
        if format_ok:
            self._buffer.add(record)
        else:
            self._buffer.add_format_failure(record, self._config.extractor.format_failure_reward)

    # ---- training ----

    async def collect(self, step: int) -> dict[str, float]:
        """Close an actor step: turn its outcomes into training samples. Returns the step's metrics."""
        self._enter(step)
        self._credit.flush_pending(step, self._free_half.outcomes)
        self._free_half.close_step(self._bank)
        samples = self._buffer.collect()
        try:
            async with self._commit.read():
                self._journal.quarantined(await self._bank.retire(), self._bank.get, step)
        except StoreError as error:
            self._fail("retire", error)
        self._buffer.forget((entry.record_id for entry in self._bank.entries()), step)
        self._reported.forget(step)
        self._call_log.flush(step)
        return {"extractor/samples": float(samples), **await self.metrics()}

    async def next_batch(self, version: int = 0) -> TrainingBatch | None:
        """Return a full CISPO batch for weights ``version``, or ``None``."""
        batch = self._buffer.next_batch(self._step, version)
        self._batch = (batch, version + 1) if batch else None
        return batch

    async def trained(self) -> None:
        """Count the batch of :meth:`next_batch` as trained, in its records and in the entries they wrote."""
        self._bank.record_training(self._buffer.trained(), self._step)
        if self._batch:
            self._call_log.trained(*self._batch)

    # ---- state ----

    async def metrics(self) -> dict[str, float]:
        """Return all counters of the run (retrievals: since the bank was opened)."""
        metrics = manager_metrics(self._totals, self._bank, self._queue, self._buffer, self._credit, self._step)
        logs = {"calls": self._call_log, "events": self._journal, "reports": self._reported}
        lost = {f"record/{name}_lost": float(log.lost) for name, log in logs.items()}
        return metrics | self.availability.metrics() | self._bank_availability.metrics() | lost

    async def drain(self, timeout: float) -> bool:
        """Wait until the queue is empty; ``False`` if that takes over ``timeout`` seconds or nobody will read it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout if self._config.extractor.distill else 0):
                await self.availability.unless_gone(self._queue.wait_idle)
        return not len(self._queue)

    async def save(self, folder: str) -> int:
        """Write bank, queue, buffer and counters; returns how many episodes on disk are missing as unreadable."""
        async with self._commit.write():
            self._call_log.flush(self._step)
            (path := Path(folder)).mkdir(parents=True, exist_ok=True)
            await self._bank.flush()
            await self._bank.save(path / "bank")
            await asyncio.to_thread(self._buffer.save, path / "buffer")  # retrieval continues meanwhile
            missing = await self._queue.save(path / "queue.jsonl")
            state = {
                "step": self._step,
                "merging": self._merging,
                "totals": self._totals.state(self._bank),
                "queue": dict(self._queue.counts),  # of the same moment as the file: attempts fail meanwhile
                "reported": self._reported.state(),
                "credit": self._credit.state(),
                "free_half": self._free_half.state(),
                "events": await asyncio.to_thread(self._journal.end),
            }
            (path / "manager.json").write_text(json.dumps(state), encoding="utf-8")
        return missing

    async def restore(self, folder: str, quarantined: Mapping[str, str] | None = None) -> list[str]:
        """Replace the state with what :meth:`save` wrote; ``quarantined`` and result as of the bank's."""
        state = json.loads(((path := Path(folder)) / "manager.json").read_text(encoding="utf-8"))
        async with self._commit.write():
            kept = await self._bank.restore(path / "bank", quarantined)
            if self._config.extractor.train:  # see _keep
                self._buffer.restore(path / "buffer")
            self._enter(state["step"])
            self._merging = state["merging"]
            self._reported.restore(state["reported"])
            self._credit.restore(state["credit"])
            if "free_half" in state:  # earlier checkpoints have none, whose open step is then not compared
                self._free_half.restore(state["free_half"])
            self._restore_counts(state)
            self._queue.restore(path / "queue.jsonl")
        return kept

    def _restore_counts(self, state: dict[str, Any]) -> None:
        self._totals = Totals.restored(state["totals"])
        self._queue.counts.update(state["queue"])

    async def close(self) -> None:
        """Stop the workers and close the bank. Pending requests are only in the last snapshot."""
        for task in self._tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.to_thread(self._call_log.close, self._step + 1)  # not in the checkpoint: a resume drops that file
        await self._bank.close()

    @property
    def _extractor(self) -> ExtractorCalls:
        if self._calls is None:
            raise RuntimeError("the extractor is not connected yet")
        return self._calls

    def _enter(self, step: int) -> None:
        """Set the step, and what is drawn at random from here on: the same after a resume."""
        self._step = step
        self._bank.random.seed(f"{self._seed} {step}")

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
