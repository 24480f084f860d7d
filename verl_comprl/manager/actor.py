"""The experience manager as a Ray actor: opens the bank and connects the extractor's server.

The logic is in ``manager.manager``; this adds what depends on Ray and verl.
"""

import asyncio
import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from verl_comprl.config.asynchrony import settling_of
from verl_comprl.config.models import load_tokenizer
from verl_comprl.config.reading import comprl_config
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import ExperienceBank, StoreError, make_embedder
from verl_comprl.experience.transfer.snapshot import snapshot_folder
from verl_comprl.extractor.calls import ExtractorCalls, Generate
from verl_comprl.extractor.credit import Settling
from verl_comprl.folder_lock import FolderLock
from verl_comprl.manager.call_log import CallLog
from verl_comprl.manager.inspection import BankInspection, remove_address, write_address
from verl_comprl.manager.kept_quarantines import KeptQuarantines
from verl_comprl.manager.kept_warnings import KeptWarnings
from verl_comprl.manager.manager import ExperienceManager
from verl_comprl.manager.messages import ManagerNotOpen
from verl_comprl.manager.opening import Opening
from verl_comprl.manager.queue_lock import lock_queue
from verl_comprl.manager.server_calls import bounded
from verl_comprl.names import manager_name
from verl_comprl.platform.garbage import relieve_garbage_collector
from verl_comprl.platform.waiting import wait_for
from verl_comprl.record.reader import CALLS, EVENTS

logger = logging.getLogger(__name__)

MANAGER_SECONDS = 30.0
"""Limit of a call to the manager that is answered at once, unless its process hangs or its machine is overloaded."""


class _ManagerActor(BankInspection, ExperienceManager):
    """Its constructor does nothing, since a Ray actor's cannot await; call :meth:`load` and :meth:`open`."""

    def __init__(self) -> None:
        self._warnings = KeptWarnings()
        self._connected = False
        self._begins_with_entries = False
        self._told = 0
        self._queue_lock: FolderLock | None = None

    def __getattr__(self, name: str) -> Any:
        """Name the reason why an attribute is missing that :meth:`open` sets; raises :class:`ManagerNotOpen`."""
        raise ManagerNotOpen(f"the experience manager has no {name}: its bank is not open")

    async def is_connected(self) -> bool:
        """Return whether :meth:`connect` has been called in this process."""
        return self._connected

    async def load(self, config: ComprlConfig, reader: DictConfig) -> None:
        """Load what takes seconds and does not depend on the bank; :meth:`open` comes after it.

        Args:
            config: The run's settings.
            reader: The actor's ``model`` subtree, whose tokenizer measures entries.
        """
        self._embedder = await make_embedder(**config.embedder.model_dump())
        self._tokenizer = load_tokenizer(reader)

    async def open(self, config: ComprlConfig, opening: Opening, *, run: str, seed: int, settling: Settling) -> None:
        """Open the bank; again, if what comes after it has failed.

        Args:
            config: The run's settings.
            opening: What is there already.
            run: The run's folder.
            seed: Of the run.
            settling: How long relative rewards wait for the free half of a prompt.

        Raises:
            ConfigError: If another run has the queue's folder.
            SnapshotError: If the checkpoint has no bank to restore, or what this one holds cannot be saved aside.
            StoreError: If the bank cannot be opened.
        """
        restored = await opening.restored(self._embedder.identity)
        # Of an attempt that failed later: a bank can be opened once. An empty one is false.
        if (left := vars(self).pop("_bank", None)) is not None:
            with suppress(StoreError):
                await left.close()
        bank = self._bank = await ExperienceBank.open(config.bank, self._embedder, tokenizer=self._tokenizer)
        # After the bank is open, whose folder it may be and must be empty, and before anything is removed from either.
        self._unlock_queue()
        self._queue_lock = lock_queue(Path(config.queue.folder))
        self._run = Path(run)
        await opening.settle(bank, aside=config.bank.path, run=self._run, restored=restored)
        is_new = not opening.keep_content and opening.checkpoint is None
        self._begins_with_entries = bool(config.initial_bank) and is_new
        if self._begins_with_entries:
            await bank.add_snapshot(snapshot_folder(config.initial_bank))
        record = config.record
        call_log = CallLog(self._run / CALLS if record.enabled else None, record.keep_steps)
        journal = self._run / EVENTS
        killed = opening.killed_in is not None
        super().__init__(config, bank, seed=seed, journal=journal, call_log=call_log, settling=settling, recover=killed)
        if not opening.keep_content:
            self._queue.set_aside_dead_letters()
        if opening.killed_in is not None:
            self._recall(opening.killed_in, opening.checkpoint)
        self._address_folder = None if config.bank.url else Path(config.bank.path)
        if self._address_folder is not None:
            write_address(self._address_folder, _actor_name(run))
        relieve_garbage_collector()

    def _recall(self, step: int, checkpoint: Path | None) -> None:
        """Continue after a kill with the counts and the records of calls that the latest checkpoint has.

        Lost are rewards that waited for training, comparisons of the open step with its free half, and records of calls
        since the checkpoint, whose entries are used but earn nothing. The checkpoint's rewards are not taken, since
        they may have been trained on, nor its open step: the bank may have been told of that comparison since.
        """
        self._enter(step)
        if checkpoint is None:
            return
        state = json.loads((checkpoint / "manager.json").read_text(encoding="utf-8"))
        self._reported.restore(state["reported"] | self._reported.state())
        self._restore_counts(state)
        if self._config.extractor.train:
            self._buffer.restore(checkpoint / "buffer", rewards=False)

    async def take_warnings(self) -> list[str]:
        """Return what was logged as a warning or worse since the last call, with tracebacks."""
        return self._warnings.take()

    async def save(self, folder: str) -> int:
        """Write the state into ``folder``, and the records of the calls that it has; returns what is missing."""
        missing = await super().save(folder)
        await asyncio.to_thread(self._call_log.settle)
        return missing

    async def restore(self, folder: str) -> list[str]:
        """Replace the state with what ``save`` wrote; returns the entries that stay quarantined by hand."""
        by_hand = await asyncio.to_thread(KeptQuarantines(self._run).reasons)
        if kept := await super().restore(folder, by_hand):
            self._journal.quarantined(kept, self._bank.get, self._step)
            logger.warning("%d entries stay quarantined as they were between starts", len(kept))
        relieve_garbage_collector()
        return kept

    async def away(self, number: int) -> None:
        """Note that the extractor cannot be asked: questions get no answer at once, distillation and merge wait.

        Args:
            number: Of the message about the extractor; Ray does not keep their order, and a late one is out of date.
        """
        if self._is_newest(number):
            self.availability.away()

    async def back(self, number: int) -> None:
        """Note that the extractor can be asked again.

        Args:
            number: As of :meth:`away`.
        """
        if self._is_newest(number):
            self.availability.back()

    def _is_newest(self, number: int) -> bool:
        newest, self._told = number > self._told, max(number, self._told)
        return newest

    async def replace_bank(self, address: str) -> None:
        """Replace the bank's content with a snapshot, unless ``address`` is empty."""
        if address:
            await self._bank.restore(snapshot_folder(address))

    async def close(self) -> None:
        """Remove the address file, stop, close the bank, and give the queue's folder back."""
        if self._address_folder is not None:
            with suppress(OSError):  # the bank's last write is worth more
                remove_address(self._address_folder)
        try:
            await super().close()
        finally:
            self._unlock_queue()

    def _unlock_queue(self) -> None:
        if self._queue_lock is not None:
            self._queue_lock.release()
            self._queue_lock = None

    async def connect(self, generate: Generate, model: DictConfig, max_prompt_tokens: int) -> None:
        """Connect the extractor's back end and start distillation.

        Args:
            generate: The back end.
            model: A ``model`` subtree, whose tokenizer encodes or measures prompts.
            max_prompt_tokens: Length of a prompt.
        """
        if self._begins_with_entries:  # not when it is opened: the run's files are put aside after that
            self._begins_with_entries = False
            self._journal.given(self._bank.entries())
        self.start(
            ExtractorCalls(
                load_tokenizer(model),
                self.availability.when_there(bounded(generate, self._config.work_timeout)),
                max_prompt_tokens=max_prompt_tokens,
                max_operations=self._config.extractor.max_operations,
                votes=self._config.extractor.votes,
                tokens=self._totals.tokens,
            )
        )
        self._connected = True


def _actor_name(run: str) -> str:
    return manager_name(ray.get_runtime_context().get_job_id(), run)


def start_manager(config: DictConfig) -> tuple[Any, Any]:
    """Start the manager of a run, which opens no bank yet, without waiting for it.

    It is on the driver's node, whose files and embedder's device are those that were checked, unless that node has no
    CPUs for Ray.

    Args:
        config: The run's config.

    Returns:
        The actor's handle, and a reference to wait for.
    """
    name = _actor_name(config.trainer.default_local_dir)
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    options: dict[str, Any] = {"name": name, "max_concurrency": 4096, "num_cpus": 1, "scheduling_strategy": here}
    manager = ray.remote(_ManagerActor).options(**options, max_restarts=-1).remote()
    return manager, load_manager(manager, config)


def load_manager(manager: Any, config: DictConfig) -> Any:
    """Let a manager whose process has just started load what it needs; returns a reference to wait for."""
    return manager.load.remote(comprl_config(config), config.actor_rollout_ref.model)


def open_bank(manager: Any, config: DictConfig, opening: Opening) -> None:
    """Let a manager open the bank of its run.

    Args:
        manager: From :func:`start_manager`, loaded.
        config: The run's config.
        opening: What is there already.

    Raises:
        ray.exceptions.RayTaskError: If the bank cannot be opened; the cause says why.
        WaitTimeout: If that takes longer than ``comprl.work_timeout``.
    """
    run = config.trainer.default_local_dir
    seed = config.data.get("seed") or 0
    settings = comprl_config(config)
    waiting = settling_of(config, settings)
    reference = manager.open.remote(settings, opening, run=run, seed=seed, settling=waiting)
    wait_for(reference, settings.work_timeout, "the experience manager to open the bank")
