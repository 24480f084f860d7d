"""Pauses the extractor's servers while its weights change, and lets them serve again whatever happens meanwhile.

Owns the order away → abort → sleep → (update) → sync → resume → back and the limit of each of these calls. The manager
is told first that the extractor goes away and last that it is back, so that no rollout asks a server that sleeps; where
servers stay awake they pause only while weights are copied, and it is not told.

Locks, in this order: the extractor's lock, which is held around all of this and while a checkpoint is written; then
that of ``manager_guard``, since the manager may have to begin again for the checkpoint; then the one around telling the
manager, under which one that begins again, or has not heard the last message, is told, too; then the manager's commit
lock, inside its own process. The manager never calls the driver, and nothing is held across a remote call without a
limit, so no two of them can wait for each other.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any

import ray
from ray.exceptions import RayError

from verl_comprl.manager.server_calls import is_dead, raise_if_dead
from verl_comprl.platform.waiting import begin, call_within, result_within, wait_for

SERVER_SECONDS = 300.0
"""Limit of abort, sleep and resume. verl's abort alone may wait a minute for requests that have just been admitted."""


class State(StrEnum):
    """Whether the servers answer."""

    SERVING = "serving"
    AWAY = "away"
    """Not yet started, or asleep for an update."""
    DOWN = "down"
    """They could not be paused or restored; :meth:`Serving.publish` is to be tried again."""


class Serving:
    """The servers of the extractor during a run."""

    def __init__(self, control: Any, *, shares_memory: bool) -> None:
        """Take over servers that sleep.

        Args:
            control: verl's ``CheckpointEngineManager`` of these servers.
            shares_memory: Whether they must sleep while the engine is trained, which shares their device's memory.
                Otherwise they pause only while weights are copied.
        """
        self._control = control
        self._shares_memory = shares_memory
        self._quiet = True
        """Whether no generation can be running, so that weights may be copied."""
        self.state = State.AWAY
        self.version = -1
        """Of the weights that the servers have."""
        self.lost = 0
        """Servers that have died."""
        self.tell: Callable[[bool], None] = lambda there: None
        """Called when the extractor goes away (False) and when it is back (True)."""
        self._telling = threading.Lock()
        """Held from a change of state until it has been told, which has a limit of its own."""
        self._copying: Future[Any] | None = None
        """The latest transfer of weights; one that took longer than its limit continues in the workers."""

    @property
    def replicas(self) -> list[Any]:
        """Replicas that have not died, as far as is known."""
        return list(self._control.replicas)

    def pause(self) -> None:
        """Abort what is generated, which verl's client resumes later, and free the memory of the servers.

        Raises:
            WaitTimeout: If a server hangs.
            ray.exceptions.RayError: If the last server has died.
        """
        self._enter(State.AWAY)
        self._leave_out_the_dead()
        self._abort()
        self._order("sleep_replicas")

    @contextmanager
    def changing_weights(
        self, version: Callable[[], int], is_late: Callable[[], bool], seconds: float
    ) -> Iterator[None]:
        """Pause the servers for a block that changes the engine's weights, as far as they must, and restore them.

        They are restored when the block raises, too; if that fails as well, they are ``DOWN``. So they are where the
        engine still changes its weights at the end: they could only wait for it once more.

        Args:
            version: Returns the version of the engine's weights.
            is_late: Returns whether the block has left behind what changes them.
            seconds: Limit of copying them.
        """
        to_restore = self._shares_memory
        try:
            if self._shares_memory:
                self.pause()
            yield
            to_restore = True
        finally:
            if to_restore and is_late():
                self._enter(State.DOWN)
            elif to_restore:
                self.publish(version(), seconds)

    def publish(self, version: int, seconds: float) -> None:
        """Copy the engine's weights to the servers and let them generate.

        Args:
            version: Of the weights.
            seconds: Limit of copying.

        Raises:
            WaitTimeout: If a server or the engine's worker hangs.
            ray.exceptions.RayError: If the worker, or the last server, has died.
        """
        try:
            self.wait_for_late_transfer(seconds)
            self._leave_out_the_dead()
            self._leave_failed_transfer()
            # Weights must not change under a running generation: its log-probs would belong to no version.
            if not self._quiet:
                self._abort()
            what = "the extractor's weights to reach its servers"
            self._copying = begin(lambda: self._control.update_weights(version), what)
            result_within(self._copying, seconds, what)
            self._quiet, self.version = False, version
            self._order("resume_generation_replicas")
        except Exception:  # whatever it was, the servers may be paused or hold weights of two versions
            self._enter(State.DOWN)
            raise
        self._enter(State.SERVING)

    def tell_again(self) -> None:
        """Tell one who takes the extractor for present, since it has just begun, if it is not."""
        with self._telling:  # told after a change of state that comes next, it would be away for good
            if self.state is not State.SERVING:
                self.tell(False)

    def repeat(self) -> None:
        """Tell the state once more, to one who may not have heard of it."""
        with self._telling:
            self.tell(self.state is State.SERVING)

    @property
    def transfer_is_late(self) -> bool:
        """Whether a transfer of weights that took longer than its limit continues; not to be asked during one."""
        return self._copying is not None and not self._copying.done()

    def wait_for_late_transfer(self, seconds: float) -> None:
        """Two transfers at a time would mix, as they use the same sockets. One that failed is made again anyway.

        Raises:
            WaitTimeout: If it is still running.
        """
        late = self._copying
        if late is None:
            return
        try:
            result_within(late, seconds, "an earlier transfer of the extractor's weights to end")
        except Exception:  # its own, which nobody needs any more, or that the time is up
            if not late.done():
                raise

    def _leave_failed_transfer(self) -> None:
        """Let all processes leave the group of a transfer that failed, as verl does only after one that succeeded.

        NCCL takes none of them into a new group before that. One that is not in a group any more says so by an error.

        Raises:
            WaitTimeout: If one hangs, which might never come to the next transfer either.
        """
        failed = self._copying is not None and self._copying.done() and self._copying.exception() is not None
        if not failed or self._control.backend == "naive":  # which has no group
            return
        engines = self._control.actor_wg
        leaving = list(engines.execute_checkpoint_engine(["finalize"] * engines.world_size))
        receivers = [worker for replica in self.replicas for worker in self._receivers(replica)]
        leaving += [worker.execute_checkpoint_engine.remote("finalize") for worker in receivers]
        for each in leaving:
            with suppress(RayError):
                wait_for(each, SERVER_SECONDS, "processes to leave a transfer of weights that failed")

    def _receivers(self, replica: Any) -> list[Any]:
        """Return the processes that take weights for a server, unless the engine's own put them there."""
        return [] if self._control.backend == "naive" else list(replica.workers)

    def _leave_out_the_dead(self) -> None:
        """Continue with the servers that are left; one that has died would fail every order to all of them.

        And copying weights to it would hang in verl's sender, which waits for a receiver. A server whose receiver has
        died would answer with the weights it has for ever, so that it is ended.

        Raises:
            ray.exceptions.RayError: Of the first server, if none is left.
        """
        replicas, dead = self.replicas, {}
        asked = [
            [process.__ray_call__.remote(raise_if_dead) for process in (*replica.servers, *self._receivers(replica))]
            for replica in replicas
        ]
        for replica, references in zip(replicas, asked, strict=True):
            try:
                wait_for(references, SERVER_SECONDS, "the extractor's servers to say that they are there")
            except Exception as error:
                if not is_dead(error):
                    raise
                dead[replica] = error
        if not dead:
            return
        if len(dead) == len(replicas):
            raise next(iter(dead.values()))
        self._control.remove_replicas(list(dead))
        for server in (server for replica in dead for server in replica.servers):
            ray.kill(server)
        self.lost += len(dead)
        print(f"{len(dead)} of the extractor's {len(replicas)} servers have died; the others continue", flush=True)

    def _abort(self) -> None:
        self._order("abort_replicas")
        self._quiet = True

    def _order(self, name: str) -> None:
        call_within(getattr(self._control, name), SERVER_SECONDS, f"the extractor's servers ({name})")

    def _enter(self, state: State) -> None:
        with self._telling:
            before, self.state = self.state, state
            if (before is State.SERVING) != (state is State.SERVING):
                self.tell(state is State.SERVING)
