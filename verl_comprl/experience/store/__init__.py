"""Stores for entries and their vectors: Qdrant's embedded engine or a Qdrant server, opened by ``open_store``."""

from typing import Any

from verl_comprl.experience.config import BankConfig
from verl_comprl.experience.store.base import ExperienceStore


async def open_store(config: BankConfig, identity: dict[str, Any] | None, *, read_only: bool) -> ExperienceStore:
    """Open the Qdrant server's collection or the embedded engine's folder that ``config`` names.

    Args:
        config: With ``url`` the bank is on the server, else in the folder ``path``.
        identity: Identity of the embedder; None opens an existing bank only.
        read_only: Open a server's bank without becoming its writer. The embedded engine
            locks its folder then too, but creates none.

    Raises:
        StoreError: If the bank is in use, was built with another embedder or schema, or cannot be read.
    """
    if config.url:
        from verl_comprl.experience.store.server import ServerStore  # the client takes a second to import

        return await ServerStore.open(config, embedding=identity, read_only=read_only)
    from verl_comprl.experience.store.embedded import EmbeddedStore  # likewise; a bank on a server needs no engine

    return await EmbeddedStore.open(config.path, embedding=identity, create=not read_only)


async def check_server(config: BankConfig) -> None:
    """Ask the server of a bank for something that opening needs.

    Raises:
        StoreError: If it cannot be reached, or refuses.
    """
    from verl_comprl.experience.store.server_client import ServerClient

    client = ServerClient(config)
    try:
        await client.call(lambda client: client.get_aliases())
    finally:
        await client.close()
