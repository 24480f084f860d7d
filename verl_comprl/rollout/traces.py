"""Traces of episodes in verl's back-ends, ``actor_rollout_ref.rollout.trace``.

Owns the choice of episodes and their attributes. What a trace holds are calls of verl's functions that are decorated
with ``rollout_trace_op``: a request to the actor's server per turn, and the tool.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from verl.utils import rollout_trace
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr

from verl_comprl.rollout.episode import EVALUATION_KEY

Phase = tuple[int, bool]
"""Step, and whether it is an evaluation."""

_KEPT_STEPS = 100
"""Asynchronous trainers play several steps at once, though never as many as this."""


class Traces:
    """Traces of one worker process."""

    def __init__(self) -> None:
        """Start without traced prompts."""
        self._prompts: dict[Phase, set[str]] = defaultdict(set)

    @contextmanager
    def episode(self, row: Mapping[str, Any]) -> Iterator[None]:
        """Trace what is called in the block, if a back-end was chosen and the prompt is among those to be traced.

        Args:
            row: The episode's dataset row with ``uid``, ``session_id`` and ``global_steps`` of verl.
        """
        if not RolloutTraceConfig.get_backend() or not self._chosen(row):
            yield
            return
        # verl's V1 worker has switched tracing off for the whole episode: it does not choose samples yet.
        token = rollout_trace._trace_enabled.set(True)
        try:
            with rollout_trace_attr(
                sample_index=row.get("index"),
                step=int(row["global_steps"]),
                rollout_n=int(row["session_id"]),
                validate=bool(row.get(EVALUATION_KEY, False)),
                name="agent_loop",
            ):
                yield
        finally:
            rollout_trace._trace_enabled.reset(token)

    def _chosen(self, row: Mapping[str, Any]) -> bool:
        """Choose the prompts of a step that come first, with all of their rollouts."""
        most = RolloutTraceConfig.get_instance().max_samples_per_step_per_worker
        if most is None:
            return True
        phase = (int(row["global_steps"]), bool(row.get(EVALUATION_KEY, False)))
        for earlier in [old for old in self._prompts if old[0] < phase[0] - _KEPT_STEPS]:
            del self._prompts[earlier]
        prompts = self._prompts[phase]
        if row["uid"] not in prompts and len(prompts) < most:
            prompts.add(row["uid"])
        return row["uid"] in prompts
