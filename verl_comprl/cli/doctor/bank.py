"""Checks of the bank and of what reads and writes it: embedder, Qdrant folder or server, the extractor's endpoint."""

import asyncio
import os
import shlex
import tempfile
from pathlib import Path
from typing import Any

from verl_comprl.cli.doctor.finding import Problem, Skipped
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.display.first_line import first_line
from verl_comprl.experience import BankConfig, StoreError, make_embedder
from verl_comprl.experience.config import EmbedderConfig
from verl_comprl.experience.store import open_store
from verl_comprl.experience.store.folder import IDENTITY, bank_inside, check_adoptable
from verl_comprl.extractor.config import KEY_REFUSED

_SECONDS = 30.0


def check_embedder(setup: Setup) -> str:
    """Load the embedder and embed a text."""
    config = setup.comprl.embedder

    async def embed() -> None:
        embedder = await make_embedder(**config.model_dump())
        await embedder.embed_queries(["a locked door"])
        setup.identity = embedder.identity

    try:
        asyncio.run(embed())
    except ImportError as error:
        if not isinstance(error.__cause__, ModuleNotFoundError):
            raise
        raise error.__cause__ from None  # which says what is missing, and has the command as its remedy
    except (OSError, ValueError) as error:
        remedy = _embedder_remedy(config, _status(error))
        raise Problem(f"comprl.embedder.model={config.model}: {first_line(error)}", remedy) from error
    dimension = setup.identity["dimension"] if setup.identity else 0
    return f"{config.model} turns experience into vectors of {dimension} numbers"


def _status(error: Exception) -> int | None:
    """Return the status by which a server that answers has refused; None if none has answered."""
    return getattr(error.__cause__, "status_code", None)


def _embedder_remedy(config: EmbedderConfig, status: int | None) -> str:
    if not config.url:
        return "comprl.embedder.model=builtin, or a model that is there"
    if status in KEY_REFUSED:
        return "export OPENAI_API_KEY=…"
    without = "comprl.embedder.url= comprl.embedder.model=builtin for the one that needs no server"
    look = f"to look: curl {config.url}/models"
    if status:
        return f"set comprl.embedder.model to one of its models of embeddings, or {without}; {look}"
    return f"start the server, or set comprl.embedder.url=OTHER_URL, or {without}; {look}"


def check_bank(setup: Setup) -> str:
    """Check that the bank can be opened; nothing is created or changed."""
    if not setup.sets("comprl.bank.") and not setup.is_run:
        return asyncio.run(_engine())
    if setup.is_wrong:
        raise Skipped("not known: the settings are wrong")
    config = setup.comprl.bank
    if config.url:
        return asyncio.run(_server(config, setup))
    folder = Path(config.path)
    try:
        if not (folder / IDENTITY).exists():
            check_adoptable(folder)
            return f"{folder} has no bank yet, the run makes it"
        return asyncio.run(_open(config, setup.identity))
    except StoreError as error:
        other = shlex.quote(f"comprl.bank.path={bank_inside(folder) or 'OTHER_FOLDER'}")
        raise _problem(error, f"--path {shlex.quote(config.path)}", setup, other) from error


async def _engine() -> str:
    from verl_comprl.experience.store.embedded import EmbeddedStore

    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(folder, embedding={"model": "none", "dimension": 4})
        await store.close()
    return "Qdrant's embedded engine works"


async def _open(config: BankConfig, identity: dict[str, Any] | None) -> str:
    store = await open_store(config, identity, read_only=True)
    try:
        return f"{config.url or config.path} has {await store.count()} entries, and nothing else has it open"
    finally:
        await store.close()


async def _server(config: BankConfig, setup: Setup) -> str:
    from verl_comprl.experience.store.server_client import ServerClient, status_of
    from verl_comprl.experience.store.server_collection import ServerCollection
    from verl_comprl.experience.store.server_lease import Lease

    client = ServerClient(config)
    try:
        collection = ServerCollection(client, config.collection)
        metadata = await collection.find()
        if metadata is None:
            return f"{config.url} answers; the run makes the collection {config.collection}"
        await Lease(client, config.collection).check()
        return await _open(config, setup.identity)
    except StoreError as error:
        if status_of(error) in KEY_REFUSED:
            raise Problem(str(error), "export QDRANT_API_KEY=…") from error
        name = f"--url {config.url} --collection {config.collection}"
        answers = status_of(error) or not error.__cause__
        remedy = "comprl.bank.collection=OTHER_NAME" if answers else _start_qdrant(config.url)
        raise _problem(error, name, setup, remedy) from error
    finally:
        await client.close()


def _start_qdrant(url: str) -> str:
    start = "docker run -p 127.0.0.1:6333:6333 -v qdrant:/qdrant/storage qdrant/qdrant:v1.18.3"
    return f"start Qdrant, on this machine with {start}, or set comprl.bank.url=OTHER_URL; to look: curl {url}"


def _problem(error: StoreError, place: str, setup: Setup, otherwise: str) -> Problem:
    if "another embedder" in str(error):
        return Problem(str(error), f"comprl bank reembed {place} {_embedder_arguments(setup)}")
    return Problem(str(error), otherwise)


def _embedder_arguments(setup: Setup) -> str:
    """Return the arguments of the settings' embedder, those too that the command would otherwise take from the bank."""
    embedder, identity = setup.comprl.embedder, setup.identity or {}
    arguments = {
        "--embedder": embedder.model,
        "--embedder-url": embedder.url or None,
        "--documents": embedder.documents,
    }
    arguments |= {f"--{kind}-prompt": identity.get(f"{kind}_prompt") for kind in ("query", "document")}
    given = ((name, value) for name, value in arguments.items() if value is not None)
    return " ".join(f"{name} {shlex.quote(value)}" for name, value in given)


def check_endpoint(setup: Setup) -> str:
    """Send the extractor's endpoint a short request, if the run uses one."""
    from verl_comprl.extractor.calls import Sampling
    from verl_comprl.extractor.endpoint import Endpoint, EndpointError

    settings = setup.comprl.extractor
    if settings.backend != "endpoint" and not settings.endpoint.url:
        raise Skipped("not used: the extractor is a model of the run")
    config = settings.endpoint.model_copy(update={"timeout": _SECONDS, "retries": 0})
    key = os.environ.get(config.key_variable, "")
    sampling = setup.config.extractor.rollout
    endpoint = Endpoint(config, key, Sampling(sampling.temperature, sampling.top_p, sampling.top_k, 16))
    try:
        asyncio.run(endpoint.check())
    except EndpointError as error:
        status = _status(error)
        if status in KEY_REFUSED:
            remedy = f"export {config.key_variable}=…"
        elif status:
            remedy = f"set comprl.extractor.endpoint.model to one of its models; to look: curl {config.url}/models"
        else:
            start = f"start the server, such as vllm serve {config.model}"
            remedy = f"{start}, or set comprl.extractor.endpoint.url=OTHER_URL; to look: curl {config.url}/models"
        raise Problem(str(error), remedy) from error
    return f"{config.model} at {config.url} answers"
