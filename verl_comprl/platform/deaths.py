"""Classes of error by which Ray tells that a process has died: its memory monitor has a class of its own."""

from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError

ACTOR_DIED = (ActorDiedError, OutOfMemoryError)
"""The process is dead."""

ACTOR_AWAY = (RayActorError, OutOfMemoryError)
"""The process is dead, or begins again, or cannot be reached at present: to be asked again, or done without."""
