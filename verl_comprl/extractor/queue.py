"""Distillation queue with at-least-once delivery: a request is removed only after the bank has committed its result.

A request in progress while a snapshot is taken is part of the snapshot; its id makes distilling it twice harmless.
Every request is also in a file, from which the queue is recovered if its process is killed. An attempt is noted there
when it begins, so that a request whose distillation kills the process is given up in the end. ``put`` never waits: a
request that does not fit in memory is in the file only, or replaces the oldest.
"""

import asyncio
import json
import logging
import random
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.config import QueueConfig
from verl_comprl.extractor.dead_letters import DeadLetters
from verl_comprl.extractor.request_log import RequestLog
from verl_comprl.files import PAUSES
from verl_comprl.record.lines import encode
from verl_comprl.record.redaction import redactor

logger = logging.getLogger(__name__)

Finish = Callable[[list[DistillationRequest]], set[str]]
"""Finishes those of the requests that had been distilled when the process before was killed; returns their ids."""

WAITING = "waiting.jsonl"
_LONGEST_BACKOFF = 60.0
_READ_AGAIN_SECONDS = 5.0
"""Seconds until a disk from which a waiting request could not be read is asked again."""
_LOGGED_AT_ONCE = 16  # of the requests that the file lacks: nobody waits long for them


@dataclass
class _Pending:
    request: DistillationRequest
    attempts: int = 0
    """Those that have failed; in the file, also the one that is being made."""

    def fields(self) -> dict[str, Any]:
        return {"attempts": self.attempts, "request": self.request.model_dump(mode="json")}

    def to_json(self) -> str:
        return json.dumps(self.fields())

    @classmethod
    def from_json(cls, text: str) -> "_Pending":
        """Read what :meth:`to_json` returned; raises a ValueError for any other text."""
        fields = json.loads(text)
        try:
            return cls(DistillationRequest.model_validate(fields["request"]), int(fields["attempts"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a waiting request: {text[:80]!r}") from error


def _letters_file(saved: Path) -> Path:
    return saved.with_name("dead_letters.json")


class DistillationQueue:
    """First-in first-out queue with acknowledgement and retries; to be used from one event loop."""

    def __init__(self, config: QueueConfig, *, recover: bool = False, finish: Finish = lambda requests: set()) -> None:
        """Create an empty queue.

        Args:
            config: Its settings.
            recover: Add what the process before, which was killed, had not yet distilled.
            finish: Asked then about the requests of which that process had begun an attempt.
        """
        self._config = config
        self._finish = finish
        self._pending: dict[str, _Pending] = {}  # in memory: ready, in progress, or waiting for a retry
        self._ready: asyncio.Queue[str] = asyncio.Queue()
        self._waiting = Path(config.folder) / WAITING
        self._log = RequestLog(self._waiting)
        self._dead_letters = DeadLetters(Path(config.folder))
        self._redact = redactor()
        self._on_disk: deque[str] = deque()
        """Ids of those that are in the file only, oldest first, but for some that could not be read."""
        self._unlogged: dict[str, _Pending] = {}
        """Those in memory of which the file, whose disk was full, does not say all."""
        self._reads_again = False
        self._saving = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.counts: Counter[str] = Counter(spilled=0, dropped=0, retried=0, dead=0, disk_failures=0)
        """Number of requests that were spilled, dropped, retried or given up, and of disk failures."""
        if recover:
            self._recover()
        else:
            with suppress(OSError):  # a resumed run restores requests from its checkpoint
                self._waiting.unlink(missing_ok=True)

    def __len__(self) -> int:
        """Return the number of requests not yet acknowledged."""
        return len(self._pending) + len(self._on_disk)

    @property
    def on_disk(self) -> int:
        """Number of requests that wait on disk and not in memory."""
        return len(self._on_disk)

    @property
    def oldest_step(self) -> int | None:
        """Smallest actor step among the requests in memory, which are the oldest that can be read; None if none are."""
        return min((pending.request.step for pending in self._pending.values()), default=None)

    def put(self, request: DistillationRequest) -> bool:
        """Add a request; returns ``False`` if it is already pending. Never waits and never fails."""
        if self._log.unread:  # once more before its first write, which would set the file aside
            self._recover()
        if self._has(request.id):
            return False
        self._admit(_Pending(request.redacted(self._redact)))
        self._log_again()
        return True

    def _has(self, id: str) -> bool:
        return id in self._pending or id in self._log

    async def get(self) -> DistillationRequest:
        """Wait for the next request; it stays pending until it is acknowledged or given up."""
        pending = self._pending[await self._ready.get()]
        if not self._log.unread:
            self._try_log(replace(pending, attempts=pending.attempts + 1))
        self._log_again()
        return pending.request

    def acknowledge(self, request: DistillationRequest) -> None:
        """Remove a request whose result is committed, and load waiting requests from disk."""
        self._forget(request.id)
        self._log_again()
        self._load()

    def _load(self) -> None:
        """Load requests from disk while there is room; a disk that cannot be read may be back some seconds later."""
        while self._on_disk and len(self._pending) < self._config.capacity:
            id = self._on_disk.popleft()
            try:
                self._make_ready(_Pending.from_json(self._log.read(id)))
            except OSError as error:
                self._count_disk_failure(f"a request that waits on disk cannot be read at present: {error}")
                self._on_disk.append(id)  # last, should it be the only one
                self._load_later()
                return
            except ValueError as error:
                self._count_disk_failure(f"a request that waited on disk is damaged: {error}")
                self._forget(id)
        if not len(self):
            self._idle.set()

    def _load_later(self) -> None:
        if not self._reads_again:
            self._reads_again = True
            asyncio.get_running_loop().call_later(_READ_AGAIN_SECONDS, self._load_again)

    def _load_again(self) -> None:
        self._reads_again = False
        if self._saving:  # what moves now would be in the checkpoint twice, or not at all
            self._load_later()
        else:
            self._load()

    async def _read_patiently(self, id: str) -> str:
        for pause in PAUSES:
            with suppress(OSError):
                return self._log.read(id)
            await asyncio.sleep(pause)
        return self._log.read(id)

    def _forget(self, id: str) -> None:
        self._pending.pop(id, None)
        self._unlogged.pop(id, None)
        try:
            self._log.remove(id)
        except OSError as error:
            self._count_disk_failure(f"if killed now, a request would be distilled again: {error}")

    def fail(self, request: DistillationRequest, reason: str) -> None:
        """Schedule a retry of a request, or write it to the dead letters if this was its last attempt.

        It stays pending, and in checkpoints, as long as its letter cannot be written.
        """
        pending = self._pending[request.id]
        pending.attempts += 1
        if pending.attempts >= self._config.max_attempts:
            self._give_up(pending, reason)
            return
        self.counts["retried"] += 1
        backoff = min(self._config.backoff_seconds * 2 ** (pending.attempts - 1), _LONGEST_BACKOFF)
        delay = backoff * random.uniform(0.5, 1.5)
        asyncio.get_running_loop().call_later(delay, self._ready.put_nowait, request.id)

    async def wait_idle(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()

    async def save(self, path: Path) -> int:
        """Write all pending requests, including those on disk, as JSON lines; and which dead letters there are.

        There may be thousands while nobody can read them: other work goes on meanwhile, but may add and acknowledge
        none, and one that fails for the last time is given up later. One on disk that is damaged is left out and
        counted; dead letters that cannot be read are not noted, and a resume leaves them as they are.

        Returns:
            Number of requests that are missing, since the disk on which they wait cannot be read at present; 1 for all
            of an earlier process.

        Raises:
            OSError: If ``path`` cannot be written.
        """
        if self._log.unread:  # no episode has come since the process began again
            self._recover()
        self._saving, missing = True, int(self._log.unread)
        try:
            with path.open("w", encoding="utf-8") as file:
                for pending in [*self._pending.values()]:
                    file.write(f"{pending.to_json()}\n")
                    await asyncio.sleep(0)
                for id in [*self._on_disk]:
                    try:
                        # With patience once: a disk that cannot be read would take it for each of thousands.
                        text = self._log.read(id) if missing else await self._read_patiently(id)
                    except (OSError, ValueError) as error:
                        missing += isinstance(error, OSError)
                        self._count_disk_failure(f"a request that waits on disk is not in a checkpoint: {error}")
                    else:
                        file.write(f"{text}\n")
                    await asyncio.sleep(0)
        finally:
            self._saving = False
        try:
            state = self._dead_letters.state()
        except OSError as error:
            self._count_disk_failure(f"dead letters cannot be read: {error}")
            return missing
        _letters_file(path).write_text(json.dumps(state), encoding="utf-8")
        return missing

    def restore(self, path: Path) -> None:
        """Add the requests that :meth:`save` wrote to the pending ones, and drop the dead letters after it."""
        if (saved := _letters_file(path)).exists():
            state = json.loads(saved.read_text(encoding="utf-8"))
            try:
                self._dead_letters.take_back(state)
            except OSError as error:
                self._count_disk_failure(f"dead letters are there twice: {error}")
        with path.open(encoding="utf-8", newline="\n") as lines:  # texts may contain other line separators
            for pending in map(_Pending.from_json, lines):
                if not self._has(pending.request.id):
                    self._admit(pending, again=True)

    def _recover(self) -> None:
        again = self._log.unread
        try:
            texts = self._log.recover()
        except OSError as error:
            if not again:
                then = "read again at the next episode, or else kept as"
                self._count_disk_failure(f"{self._waiting} cannot be read; {then} {self._waiting}.unread: {error}")
            return
        if damaged := self._log.damaged:
            what = f"{damaged} damaged lines of {self._waiting} are left out"
            self._count_disk_failure(f"{what}, see {self._waiting}.damaged", damaged)
        recovered: dict[str, _Pending] = {}
        for id, text in texts.items():
            if id in self._pending:  # put while the file could not be read
                continue
            try:
                recovered[id] = _Pending.from_json(text)
            except ValueError as error:
                self._count_disk_failure(f"a request of the process before is lost: {error}")
                self._forget(id)
        over = self._over([pending.request for pending in recovered.values() if pending.attempts])
        for id, pending in recovered.items():
            if id in over:
                self._forget(id)
            elif pending.attempts >= self._config.max_attempts:
                self._pending[id] = pending
                self._give_up(pending, "the experience manager was killed during its last attempt")
            else:
                self._admit(pending, logged=True, again=True)

    def _over(self, begun: list[DistillationRequest]) -> set[str]:
        """Return those that the process before had distilled or given up, and was killed before it had noted that."""
        if not begun:
            return set()
        over = self._finish(begun)
        try:
            over |= self._dead_letters.ids()
        except OSError as error:
            self._count_disk_failure(f"an episode may become a dead letter twice: {error}")
        return over

    def set_aside_dead_letters(self) -> None:
        """Begin without those of an earlier run in the same folder, whose file is kept with a time stamp."""
        try:
            self._dead_letters.set_aside()
        except OSError as error:
            self._count_disk_failure(f"dead letters of an earlier run are among those of this one: {error}")

    def _admit(self, pending: _Pending, *, logged: bool = False, again: bool = False) -> None:
        """Take a request; one that is there ``again``, in another process, has been counted."""
        self._idle.clear()
        id, logged = pending.request.id, logged or self._try_log(pending)
        full = len(self._pending) >= self._config.capacity
        if self._config.overflow == "spill":
            if logged and (full or self._on_disk):
                self._on_disk.append(id)
                self.counts["spilled"] += not again
                return
        elif full and not self._ready.empty():  # requests in progress are never dropped
            self._forget(self._ready.get_nowait())
            self.counts["dropped"] += 1
        self._make_ready(pending)

    def _make_ready(self, pending: _Pending) -> None:
        self._pending[pending.request.id] = pending
        self._ready.put_nowait(pending.request.id)

    def _try_log(self, pending: _Pending) -> bool:
        """Write a request to the file; one that is refused is counted once, and the last to be tried again."""
        id = pending.request.id
        was_refused = self._unlogged.pop(id, None) is not None
        try:
            self._log.put(id, pending.to_json())
        except OSError as error:  # using too much memory is better than losing an episode
            self._unlogged[id] = pending
            if not was_refused:
                self._count_disk_failure(f"if killed now, a request would be lost, or an attempt not counted: {error}")
        return id not in self._unlogged

    def _log_again(self) -> None:
        """Write what the file lacks, if there is room by now: who has reported an episode will not do so again."""
        for pending in [*islice(self._unlogged.values(), _LOGGED_AT_ONCE)]:
            if self._log.unread or not self._try_log(pending):
                break

    def _give_up(self, pending: _Pending, reason: str) -> None:
        """Write a pending request to the dead letters and remove it; it is kept while that fails, and tried again."""
        self._idle.clear()
        if not self._saving and self._try_write_letter(pending, reason):
            self.acknowledge(pending.request)
        else:
            asyncio.get_running_loop().call_later(_LONGEST_BACKOFF, self._give_up, pending, reason)

    def _try_write_letter(self, pending: _Pending, reason: str) -> bool:
        letter = {"at": time.time(), "reason": reason, **pending.fields()}
        try:
            self._dead_letters.add(self._redact(encode(letter)))  # the reason may show a secret, too
        except OSError as error:
            self._count_disk_failure(f"the dead letter of episode {pending.request.id} has to wait: {error}")
            return False
        if not self.counts["dead"]:
            where = self._dead_letters.path
            logger.warning("an episode could not be distilled, see %s; further ones are only counted", where)
        self.counts["dead"] += 1
        return True

    def _count_disk_failure(self, what: str, times: int = 1) -> None:
        if not self.counts["disk_failures"]:
            logger.warning("distillation queue: %s; further disk failures are only counted", what)
        self.counts["disk_failures"] += times
