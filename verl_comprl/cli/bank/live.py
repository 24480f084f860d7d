"""Read access to a bank that a training run has open, through the run's experience manager.

Owns the connection to the run's Ray cluster. The manager writes its address to ``address.json`` in the bank's folder.
"""

import asyncio
import json
import logging
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

from verl_comprl.cli.bank.interface import BankSource
from verl_comprl.display.first_line import first_line
from verl_comprl.experience import Experience, StoreError
from verl_comprl.manager.inspection import ADDRESS_FILE

_CONNECT_SECONDS = 5.0
_ANSWER_SECONDS = 600.0  # a snapshot of a large bank takes minutes


@asynccontextmanager
async def connected(folder: Path, held: StoreError) -> AsyncIterator["_LiveBank"]:
    """Connect to the manager of the run that holds ``folder``.

    Args:
        folder: The bank's folder.
        held: The error of opening it, which names the process that holds it; raised again if that is not a run.

    Raises:
        StoreError: If the manager cannot be reached.
    """
    address = _address(folder)
    if address is None:
        raise held
    manager, owner = address
    # A cluster runs code of whoever has it: the address of another user's is not followed.
    if owner != os.geteuid():
        raise StoreError(f"{held}; it is another user's: read it as that user")
    try:
        host, _, port = manager["ray_address"].rpartition(":")
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()  # ray.init would retry for minutes
        # Ray reads this variable when it is imported. The token itself it finds in the user's home directory.
        os.environ.setdefault("RAY_AUTH_MODE", str(manager["auth_mode"]))
    except (KeyError, ValueError, OSError) as error:
        raise StoreError(f"{held}; its experience manager cannot be reached: {first_line(error)}") from error

    import ray
    from ray.exceptions import RayError

    from verl_comprl.platform.patches import ray_on_loopback

    try:
        with ray_on_loopback() if host.startswith("127.") else nullcontext():
            ray.init(
                address=manager["ray_address"],
                namespace=manager["namespace"],
                logging_level=logging.ERROR,
                log_to_driver=False,
            )
        actor = ray.get_actor(manager["actor"])
    except (RayError, KeyError, ValueError, RuntimeError, OSError) as error:  # raised if there is no such cluster
        ray.shutdown()
        raise StoreError(f"{held}; its experience manager cannot be reached: {first_line(error)}") from error
    try:
        yield _LiveBank(actor, manager["pid"])
    finally:
        ray.shutdown()


def is_open_in_a_run(folder: Path) -> bool:
    """Tell whether a run holds the bank's folder, which is known to be in use, and not another command."""
    return _address(folder) is not None


def _address(folder: Path) -> tuple[dict[str, Any], int] | None:
    """Return the address of the manager that holds the folder, and the user that wrote it; None if it is no run."""
    try:
        with (folder / ADDRESS_FILE).open("rb") as file:
            manager, owner = json.loads(file.read()), os.fstat(file.fileno()).st_uid
        # Another process has the lock now if a run was killed.
        return (manager, owner) if manager["pid"] == int((folder / "lock").read_text()) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


class _LiveBank(BankSource):
    """Asks the manager of the run which has the bank open."""

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
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await getattr(self._actor, method).remote(*arguments)
        except RayTaskError as error:
            raise StoreError(f"the run in process {self._pid} reported an error: {first_line(error.cause)}") from error
        except RayError as error:
            raise StoreError(f"the run in process {self._pid} can no longer be reached: {first_line(error)}") from error
        except TimeoutError as error:
            raise StoreError(f"the run in process {self._pid} did not answer within {_ANSWER_SECONDS:g} s") from error
