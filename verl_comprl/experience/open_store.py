"""Which store a bank's configuration asks for."""

from typing import Any

from verl_comprl.experience.bank_config import BankConfig
from verl_comprl.experience.embedded_store import EmbeddedStore
from verl_comprl.experience.store import ExperienceStore


async def open_store(config: BankConfig, identity: dict[str, Any] | None, *, read_only: bool) -> ExperienceStore:
    """Open the Qdrant server's collection or the embedded engine's folder that ``config`` names.

    Args:
        config: Its ``url`` decides.
        identity: Of the embedder; None opens what exists.
        read_only: A server's bank is opened beside its writer.

    Raises:
        StoreError: If the bank is in use, was built with another embedder or schema, or cannot be read.
    """
    if config.url:
        from verl_comprl.experience.server_store import ServerStore  # the client takes a second to import

        return await ServerStore.open(config, embedding=identity, read_only=read_only)
    return await EmbeddedStore.open(config.path, embedding=identity)
