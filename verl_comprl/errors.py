"""Failure model: what can fail in a run, what each failure costs, what counts it and what the user sees.

A failed rollout is missing data, not a crash. The run continues unless a failure would make it meaningless.

**A rollout fails** at one of four boundaries. The code that makes the call knows which one and says so
(:func:`failing_at`), so that nothing has to be guessed from exception types later.

===========  ==========================================================================================
environment  It cannot be made (``ImportError``, ``ValueError``, ``TypeError``), or it raised, died, gave rewards
             that are not finite as a float32, or exceeded ``comprl.environments.*_timeout`` (``EnvironmentFailure``).
server       The actor's server did not generate; whatever verl's client raises, often a ``RayError``. Or it gave
             log-probs that are not finite (``ValueError``).
manager      No experience manager runs in this Ray job (``ValueError``).
rollout      Anything else: a dataset row that cannot be read, a fault in the agent loop, or a tokenizer that
             panics (``LibraryPanic``).
===========  ==========================================================================================

* Raised: :class:`RolloutError`, caught in ``rollout/agent_loop.py: run``.
* Cost: this rollout. The others of its prompt are compared among themselves. If every rollout of a batch fails, verl
  stops the run; its traceback ends with what failed, or with the process that has died. An asynchronous trainer
  replaces prompts without any rollout (``trainer/step/groups.py``), and those that verl itself gives up (a reward
  function raises, say), and stops when all of four batches in a row were such ones.
* Counted: ``comprl/rollouts/failed/<boundary>`` of the step, rollouts of an evaluation included.
* Seen: a line in ``RUN/failures.jsonl`` for each failed rollout. The first traceback of each kind, which is a boundary
  and an exception type, is in ``RUN/train.log``. ``rollout/failures.py`` sends them, ``trainer/run_folder/failures.py``
  writes them.

**Guidance fails**, the rollout continues without it (``rollout/guidance.py``, ``experience/retrieval/retriever.py``).

* Store or embedder fail during retrieval, or the manager raises or is late: the slot is trained as free. Counted in
  ``comprl/degraded``, at evaluations in ``comprl/eval/degraded_with``; if the manager noticed and it was a training
  episode, in ``comprl/bank/degraded`` and ``comprl/guides/degraded`` too.
* The extractor or the retrieval fails behind ``search_and_ask``: the actor reads that there is no answer. Counted in
  ``comprl/answers/failed`` and ``degraded``; what raised in ``comprl/failures/search_and_ask:<type>``.
* The extractor is away for an update, or its server has died: the same answer, at once. Counted in
  ``comprl/answers/unavailable``.
* The manager does not confirm a finished episode in time: the agent loop keeps it and sends it again when the manager
  answers (``rollout/unconfirmed.py``), at the end of the step, before a checkpoint and at the end of the run as well
  (``trainer/late_reports.py``). It counts once, in the step in which it is taken. Counted in ``comprl/unreported``; one
  that is given up is neither distilled nor credited: ``comprl/unreported_dropped``. A checkpoint that would lack such
  episodes is left out (``comprl/saves_failed``), unless it is the last.

**The manager fails** at work that no rollout waits for. It counts what raised in ``comprl/failures/<what>:<type>``.
``StoreError`` is the store, ``LibraryPanic`` a tokenizer, other types are the embedder's or those of the extractor's
server.

* ``distill``: the episode is tried again, then moved to ``dead_letters.jsonl`` (``comprl/queue/retried``, ``dead``).
  A store or an embedder that cannot be reached, or whose disk is full (``StoreUnavailable``, ``EmbedderUnavailable``),
  is waited for instead, by a merge, too: ``comprl/bank/away``. A store that has lost the bank gets it back from memory
  (``experience/ledger.py``): ``comprl/bank/rebuilds``.
* ``merge``: the entries of one chunk stay as they are. ``retire``: entries are retired a step later.
* Episodes, calls of the extractor, events of the bank or ids of counted episodes cannot be recorded:
  ``comprl/record/episodes_lost``, ``calls_lost``, ``events_lost`` and ``reports_lost``.
* Counters or removals of the bank, or files of the queue, cannot be written: ``comprl/bank/counter_flush_failures`` and
  ``comprl/queue/disk_failures``; both are kept in memory.

An endpoint in the extractor's place (``extractor/endpoint.py``) fails like its server does, after the retries of a
request (``openai.OpenAIError``, ``EndpointError``); one that cannot be reached, or takes no requests, is away. While
the actor's server, in that place, is paused, calls wait.

The first traceback of each kind is in ``RUN/train.log``, with all other warnings of the manager
(``manager/kept_warnings.py``). While the extractor is away, distillations and a merge wait, which is no failure
(``manager/availability.py``). A step that the manager does not close in time is counted in
``comprl/collect_timeouts`` and continues.

**The manager's process dies**. Ray starts it again, and ``trainer/manager_guard.py`` opens bank and queue in it.
Rollouts continue without guidance meanwhile.

* Kept: what the bank has acknowledged, every distillation that waited, and which episodes were counted. Counts and
  records of calls are those of the latest checkpoint.
* Lost: rewards that waited for training; the step's calls on disk; counts since the checkpoint. An entry written since
  then is used, and rewards nothing.
* Counted in ``comprl/manager_restarts``; episodes that ended meanwhile, which are reported again, in
  ``comprl/unreported``.

**An update of the extractor fails** in a worker, in a server, or because a wait reached its limit
(:class:`WaitTimeout`). The servers are restored (``trainer/servers/serving.py``) and it is tried again after 5, 10,
20 … seconds with the same samples. After ``comprl.extractor.max_failures`` in a row the extractor is no longer
trained; the run continues with what it has. Counted in ``comprl/extractor/failed`` and ``given_up``;
``RUN/train.log`` has the first traceback. If its gradient is not finite, verl's engine leaves the weights as they are,
and its batch counts as trained: ``comprl/extractor/skipped``. So does one whose weights have changed in any rank before
something failed (:class:`UpdateMade`). Its engine trains no further where that was in the middle of the optimizer's
step, and a run that resumes has new moments. Where one of several ranks fails and the others wait for it, or ranks that
hold copies of the same weights have not all changed them, its engine is used for nothing any more
(``platform/ranks.py``).

**The extractor's engine dies or hangs**. Its updates fail as above. A checkpoint gets the extractor of the one before
it (``trainer/checkpoint/contents.py``), counted in ``comprl/extractor/saves_failed``; without one, saving ends the run.
That of a stop does so, too, where an update has not ended after two minutes; without one before it, it waits.

**The run stops** if the bank cannot be opened, saved or restored (``StoreError``, ``SnapshotError``: one line on the
terminal, exit code 2), if the extractor's endpoint refuses the first request (``EndpointError``: likewise), if the
manager cannot begin again, three times in a row, or since its store or embedder are away for longer than
``comprl.watchdog.end_after`` (``ManagerLost``), if an update of the actor raises, or one of the
extractor while ``comprl.extractor.max_failures`` is 0.

**A process that the actor needs dies**: an agent loop worker, a server of the actor or its engine, a reward worker, a
worker of the actor's own engine. verl would wait for prompts without end; the run ends within seconds, with an error
that names the process and the reason that Ray knows (``trainer/watchdog/liveness.py``). The next start resumes. The
watchdog (``trainer/watchdog/watching.py``) tells of everything that takes too long.

**Something hangs for which verl or TransferQueue waits without a limit**: a server, a worker. After
``comprl.watchdog.end_after`` seconds without progress the watchdog ends the run with ``RunHung``
(``trainer/watchdog/ending.py``): exit code 1, and one error that says what was waited for and who does not answer.

After the agent loop, outputs are verl's (reward functions, TransferQueue): it writes an error there to Ray's log of the
worker and treats the prompt as failed.

Owns the boundaries of a rollout, the exception that names them, what is a failure and what an order to stop, and the
exit code of a stopped run; imports nothing of the package.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

INTERRUPTED = 130
"""Exit code of a command that was stopped by SIGINT or SIGTERM."""


class Boundary(StrEnum):
    """Where a rollout can fail."""

    ENVIRONMENT = "environment"
    SERVER = "server"
    """The actor's inference server."""
    MANAGER = "manager"
    ROLLOUT = "rollout"
    """The agent loop or its dataset row."""


class WaitTimeout(TimeoutError):
    """A remote call took longer than its limit (``platform/waiting.py``)."""

    def __init__(self, what: str, seconds: float) -> None:
        """Name what was waited for, and for how long."""
        super().__init__(what, seconds)
        self.what, self.seconds = what, seconds

    def __str__(self) -> str:
        """Return both."""
        return f"waited {self.seconds:g} s for {self.what}"


class UpdateMade(RuntimeError):
    """An update of a model has changed its weights, and what follows in its worker has failed."""


class RolloutError(Exception):
    """A rollout failed; the cause is what was raised at the boundary."""

    def __init__(self, boundary: Boundary) -> None:
        """Name the boundary; raise it from the cause."""
        super().__init__(boundary)
        self.boundary = boundary

    def __str__(self) -> str:
        """Return the boundary and what was raised there."""
        return f"{self.boundary}: {self.__cause__!r}"


class LibraryPanic(RuntimeError):
    """A library gave up with something that is no ``Exception``, which nobody who handles failures would catch."""


_ORDERS_TO_STOP = (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt, SystemExit)
"""The only ``BaseException`` types that are no failures."""


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """Turn what the block raises into an ``Exception``, unless it is an order to stop.

    Libraries in Rust raise ``PanicException`` where they panic: tokenizers do so on some long texts.

    Raises:
        LibraryPanic: From what the block raised.
    """
    try:
        yield
    except (Exception, *_ORDERS_TO_STOP):
        raise
    except BaseException as error:
        if isinstance(error, BaseExceptionGroup) and error.subgroup(_ORDERS_TO_STOP):
            raise
        raise LibraryPanic(f"{type(error).__name__}: {error}") from error


@contextmanager
def failing_at(boundary: Boundary) -> Iterator[None]:
    """Attribute what the block raises to ``boundary``; an error that has a boundary already keeps it.

    Cancellation passes through, so time limits around the block work as usual.

    Raises:
        RolloutError: From the exception that the block raised.
    """
    try:
        with panics_as_errors():
            yield
    except RolloutError:
        raise
    except Exception as error:
        raise RolloutError(boundary) from error
