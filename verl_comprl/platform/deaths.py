"""What Ray raises for a call to a process that has died: another class where its memory monitor has killed it."""

from ray.exceptions import ActorDiedError, OutOfMemoryError, RayActorError

ACTOR_DIED = (ActorDiedError, OutOfMemoryError)
"""The process is dead."""

ACTOR_AWAY = (RayActorError, OutOfMemoryError)
"""The process is dead, or begins again, or cannot be reached at present."""
