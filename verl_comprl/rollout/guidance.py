"""Calls from a rollout to the experience manager, bounded in time, and which rollouts are guided.

A call that fails costs the guidance and not the rollout, see :mod:`verl_comprl.errors`.
"""

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import RayError

from verl_comprl.errors import Boundary, failing_at
from verl_comprl.manager.messages import UNAVAILABLE, Answer, EpisodeReport, Guide
from verl_comprl.names import manager_name
from verl_comprl.platform.pauses import episode_clock
from verl_comprl.record.redaction import text_redactor
from verl_comprl.rollout.unconfirmed import UnconfirmedReports

logger = logging.getLogger(__name__)

FIRST_SECONDS = 30.0
"""Limit of a guide or a report."""

LATER_SECONDS = 5.0
"""Their limit after one of them has timed out, until the manager answers again."""

MAX_AWAITED = 3
"""Time-outs in a row after which reports are sent without waiting."""

_LATE = object()
"""In place of an answer that did not come in time."""


def is_guided_slot(session_id: int, group_size: int, guided_fraction: float, step: int, warmup_steps: int) -> bool:
    """Return whether a rollout belongs to the guided half; fixed before the episode starts.

    Args:
        session_id: Index of the rollout among the prompt's K.
        group_size: K.
        guided_fraction: Share of the guided half.
        step: Actor step, from 1.
        warmup_steps: Steps at the start in which every rollout is free, while the bank fills.
    """
    return step > warmup_steps and session_id < round(group_size * guided_fraction)


class Guidance:
    """Client of the experience manager for rollouts; a failure or a time-out is an empty answer."""

    def __init__(self, manager: Any) -> None:
        """Wrap a Ray actor handle of :class:`~verl_comprl.manager.manager.ExperienceManager`."""
        self._manager = manager
        self._complained = False
        self._unconfirmed = UnconfirmedReports(self._send)
        self._timeouts = 0
        """Guides and reports in a row that timed out."""

    @classmethod
    def connect(cls, run: str) -> "Guidance":
        """Find the manager of a run in this Ray job.

        Args:
            run: The run's folder, ``trainer.default_local_dir``.

        Raises:
            RolloutError: If no manager runs: the trainer is not one of ours, or the manager died.
        """
        with failing_at(Boundary.MANAGER):
            return cls(ray.get_actor(manager_name(ray.get_runtime_context().get_job_id(), run)))

    async def guide(self, query: str, *, task: str, environment: str, prompt: str, read_only: bool) -> Guide:
        """Retrieve one entry for a rollout of ``prompt``; ``degraded`` if the manager does not answer."""
        # An environment can show the variables of the run, which an actor may quote: to an endpoint, or into samples.
        call = self._manager.guide.remote(text_redactor()(query), task, environment, prompt=prompt, read_only=read_only)
        return await self._patiently(call) or Guide("degraded")

    async def ask(self, query: str, *, task: str, environment: str, read_only: bool, timeout: float) -> Answer:
        """Answer a question within ``timeout`` seconds; a short text says so if there is no answer.

        Seconds in which the actor's servers pause do not count: they may be what answers.
        """
        call = self._manager.search_and_ask.remote(text_redactor()(query), task, environment, read_only=read_only)
        answer = await self._bounded(call, episode_clock().timeout(timeout))
        return Answer("degraded", UNAVAILABLE) if answer is None or answer is _LATE else answer

    async def report(self, episode: EpisodeReport) -> bool:
        """Hand over a finished training episode; does not wait for a manager that has stopped answering.

        Returns:
            Whether the manager has confirmed that it took the episode; otherwise it is sent again when it answers.
        """
        call = self._manager.report.remote(episode)
        confirmed = self._timeouts < MAX_AWAITED and bool(await self._patiently(call))
        if not confirmed:
            self._unconfirmed.keep(episode)
        return confirmed

    async def _send(self, episode: EpisodeReport) -> bool:
        async with asyncio.timeout(LATER_SECONDS):
            confirmed = await self._manager.report.remote(episode)
        self._timeouts = 0  # a run whose episodes get no guides would hear of it from nobody else
        return confirmed

    async def _patiently(self, call: Any) -> Any:
        before = self._timeouts
        answer = await self._bounded(call, asyncio.timeout(LATER_SECONDS if before else FIRST_SECONDS))
        if answer is _LATE:
            # Calls that started together count once: a thousand episodes begin at the same time.
            self._timeouts = max(self._timeouts, before + 1)
            return None
        self._timeouts = 0
        return answer

    async def _bounded(self, call: Any, limit: asyncio.Timeout) -> Any:
        try:
            async with limit:
                answer = await call
        except RayError as error:  # what the manager raises itself arrives as a RayTaskError, which is one too
            self._complain(error)
            return None
        except TimeoutError as error:
            self._complain(error)
            return _LATE
        self._unconfirmed.send_again()
        return answer

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            logger.warning("the experience manager does not answer, rollouts continue without it: %r", error)
            self._complained = True
