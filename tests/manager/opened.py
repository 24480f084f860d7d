"""Managers that are opened one after the other, as by the starts of a run: what tests do with their banks."""

from collections.abc import Awaitable, Callable
from typing import Any

from verl_comprl.experience import Add
from verl_comprl.manager.opening import Opening

CALL = {"listed": (), "task": "fetch", "environment": "room", "step": 0, "weight_version": 0}
KEPT, NOT_KEPT = Opening(keep_content=True), Opening(keep_content=False)
OpenManager = Callable[..., Awaitable[Any]]


async def write(manager: Any, title: str) -> None:
    await manager._bank.apply([Add(title=title, content="take the key")], call_id=title, **CALL)


def titles(manager: Any) -> list[str]:
    return [entry.title for entry in manager._bank.entries()]
