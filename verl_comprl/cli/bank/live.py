"""A bank that a run is using, read through the run's experience manager.

Owns the connection to the run's Ray cluster. The manager says in ``manager.json``, in the bank's folder, where it is.
"""

import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from verl_comprl.experience import Experience, StoreError
from verl_comprl.manager.inspection import MANAGER_FILE

_CONNECT_SECONDS = 5.0


@asynccontextmanager
async def connected(folder: Path, held: StoreError) -> AsyncIterator["_LiveBank"]:
    """Connect to the manager of the run that holds ``folder``.

    Args:
        folder: The bank's.
        held: Raised again if it is not a run that holds it; says which process does.

    Raises:
        StoreError: If the manager cannot be reached.
    """
    try:
        manager = json.loads((folder / MANAGER_FILE).read_bytes())
        left_behind = manager["pid"] != int((folder / "lock").read_text())  # by a run that was killed
    except (OSError, ValueError, KeyError, TypeError):
        raise held from None
    if left_behind:
        raise held
    try:
        host, _, port = manager["ray_address"].rpartition(":")
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()  # Ray would try for minutes
        # Ray reads it when it is imported, and finds the token itself where it has put it: in the user's home.
        os.environ.setdefault("RAY_AUTH_MODE", str(manager["auth_mode"]))
    except (KeyError, ValueError, OSError) as error:
        raise StoreError(f"{held}; its experience manager cannot be reached: {_first_line(error)}") from error

    import ray
    from ray.exceptions import RayError

    try:
        ray.init(
            address=manager["ray_address"],
            namespace=manager["namespace"],
            logging_level=logging.ERROR,
            log_to_driver=False,
        )
        actor = ray.get_actor(manager["actor"])
    except (RayError, KeyError, ValueError, RuntimeError, OSError) as error:  # what Ray raises for a cluster not there
        ray.shutdown()
        raise StoreError(f"{held}; its experience manager cannot be reached: {_first_line(error)}") from error
    try:
        yield _LiveBank(actor, manager["pid"])
    finally:
        ray.shutdown()


class _LiveBank:
    """A bank behind its run's manager, read like an open one: a ``BankSource``."""

    def __init__(self, actor: Any, pid: int) -> None:
        self._actor = actor
        self._pid = pid

    async def statistics(self) -> dict[str, Any]:
        return await self._call("bank_statistics")

    async def entries(self) -> list[Experience]:
        return [Experience.model_validate(fields) for fields in await self._call("bank_entries")]

    async def search(self, query: str, limit: int) -> list[tuple[Experience, float]]:
        hits = await self._call("bank_search", query, limit)
        return [(Experience.model_validate(fields), score) for fields, score in hits]

    async def snapshot(self, folder: Path) -> None:
        await self._call("bank_snapshot", str(folder))

    async def verify(self) -> list[str]:
        return await self._call("bank_verify")

    async def _call(self, method: str, *arguments: Any) -> Any:
        from ray.exceptions import RayError, RayTaskError

        try:
            return await getattr(self._actor, method).remote(*arguments)
        except RayTaskError as error:
            raise StoreError(f"the run in process {self._pid} could not do that: {_first_line(error.cause)}") from error
        except RayError as error:
            raise StoreError(f"the run in process {self._pid} has gone away: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or repr(error)).split("\n")[0]
