"""Records of failed rollouts, sent from agent loop workers to the trainer.

They travel as tags in a partition of verl's TransferQueue, since workers may be on other nodes and some arms have no
experience manager. ``trainer/run_folder/failures.py`` receives them; :mod:`verl_comprl.errors` describes the failure
model.
"""

import logging
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import transfer_queue as tq

from env_adapters.host import EnvironmentFailure
from verl_comprl.errors import Boundary, RolloutError
from verl_comprl.record.redaction import text_redactor
from verl_comprl.rollout.episode import EVALUATION_KEY

logger = logging.getLogger(__name__)

PARTITION = "comprl_failures"
"""verl's replay buffer lists all partitions at every poll but looks at its own two only."""

# TransferQueue has no limit on a tag, but that listing copies all of them.
MAX_TEXT_CHARS = 500
MAX_TRACEBACK_CHARS = 8000
MAX_KIND_CHARS = 100
MAX_KINDS = 200
"""Kinds of failure of which a worker sends a traceback: an environment names its own."""


@dataclass(frozen=True)
class FailedRollout:
    """One failed rollout."""

    id: str
    """``{uid}_{session}``, as :attr:`Episode.id`."""
    step: int
    task: str
    environment: str
    boundary: Boundary
    type: str
    """Exception type; of an environment in another process, the type that was raised there."""
    text: str
    evaluation: bool
    traceback: str = ""
    """Only in a worker's first record of a kind."""

    @property
    def kind(self) -> tuple[str, str]:
        """Failures of the same kind have one traceback among them."""
        return self.boundary, self.type


def describe(row: Mapping[str, Any], error: Exception) -> FailedRollout:
    """Return the record of a rollout that raised ``error``, with its traceback.

    Args:
        row: The dataset row with verl's columns. Whatever is missing is left empty: it may be why the rollout failed.
        error: A :class:`RolloutError`, or anything else that was raised in the agent loop.
    """
    boundary, cause = Boundary.ROLLOUT, error
    if isinstance(error, RolloutError):
        boundary, cause = error.boundary, error.__cause__ or error
    kind = cause.kind if isinstance(cause, EnvironmentFailure) else type(cause).__name__
    redact = text_redactor()  # here, since the trainer need not have the variables of this node
    extra_info = row.get("extra_info")
    return FailedRollout(
        id=f"{row.get('uid')}_{row.get('session_id')}",
        step=int(row.get("global_steps", -1)),
        task=str(row.get("data_source", "")),
        environment=str(extra_info.get("environment", "")) if isinstance(extra_info, Mapping) else "",
        boundary=boundary,
        type=_shortened(redact(kind), MAX_KIND_CHARS),
        text=_shortened(redact(str(cause)), MAX_TEXT_CHARS),
        evaluation=bool(row.get(EVALUATION_KEY, False)),
        traceback=_shortened(redact("".join(traceback.format_exception(cause))), MAX_TRACEBACK_CHARS),
    )


class FailureReporter:
    """Sends the failures of one worker process."""

    def __init__(self, put: Callable[..., Awaitable[Any]] = tq.async_kv_put) -> None:
        """Send with ``put``, which has the signature of TransferQueue's."""
        self._put = put
        self._sent: set[tuple[str, str]] = set()

    async def report(self, row: Mapping[str, Any], error: Exception) -> FailedRollout | None:
        """Send the record of a failed rollout and return it; never raises, and returns None if it cannot be made."""
        failure = None
        try:
            failure = describe(row, error)
            tag = asdict(failure) | {"boundary": failure.boundary.value}
            is_new = failure.kind not in self._sent and len(self._sent) < MAX_KINDS
            if not is_new:
                tag["traceback"] = ""
            await self._put(key=failure.id, partition_id=PARTITION, tag=tag)
            if is_new:
                self._sent.add(failure.kind)
        except Exception:  # whatever the queue raises: Ray's log of this worker is the only place left
            logger.exception("a failed rollout could not be reported; it failed with %r", error)
        return failure


def _shortened(text: str, most: int) -> str:
    """Return head and tail of a text that is too long, without what UTF-8 cannot encode."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} … {text[-half:]}"
