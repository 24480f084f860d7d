"""vLLM's OpenAI-compatible server of a model on this machine, for one command."""

import argparse
import asyncio
import importlib.util
import shlex
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from verl_comprl.platform import child

_SERVER = "vllm.entrypoints.openai.api_server"
_START_SECONDS = 1800.0
"""For the download of a model, too."""
_END_SECONDS = 10.0


@asynccontextmanager
async def reachable(options: argparse.Namespace) -> AsyncIterator[argparse.Namespace]:
    """Yield the arguments with an endpoint: with ``--local`` that of a server which runs meanwhile.

    Raises:
        ImportError: If a local model has to be served, and vLLM is missing.
        ValueError: If it cannot be served.
    """
    local = getattr(options, "local", None)  # some commands do not have it
    if local is None:
        yield options
        return
    async with serving(options.model, local) as url:
        yield argparse.Namespace(**vars(options) | {"endpoint": url, "key_variable": ""})


@asynccontextmanager
async def serving(model: str, options: str) -> AsyncIterator[str]:
    """Serve a model on the loopback interface, and yield the URL of its endpoint.

    Args:
        model: Folder, or name on the Hugging Face hub.
        options: Further options of ``vllm serve``, as on a command line.

    Raises:
        ImportError: If vLLM is missing.
        ValueError: If the server ends, or does not answer in time; with the file of what it has printed, which is left
            whenever this ends with an error.
    """
    if importlib.util.find_spec("vllm") is None:
        raise ImportError(
            "--local needs vLLM: pip install vllm, or serve the model by other means and give its --endpoint"
        )
    port = child.free_port("127.0.0.1")
    command = ["--model", model, "--served-model-name", model, "--host", "127.0.0.1", "--port", str(port)]
    with tempfile.NamedTemporaryFile(prefix="comprl-vllm-", suffix=".log", delete=False) as output:
        process = child.start("-m", _SERVER, *command, *shlex.split(options), output=output.file)
    log = Path(output.name)
    try:
        print(f"starting vLLM's server of {model} …", file=sys.stderr, flush=True)
        url = f"http://127.0.0.1:{port}"
        try:
            await asyncio.wait_for(_until_it_answers(process, f"{url}/health"), _START_SECONDS)
        except (TimeoutError, ChildProcessError) as error:
            raise ValueError(f"vLLM's server of --model {model} did not start ({log}): {_last_line(log)}") from error
        yield f"{url}/v1"
        log.unlink()
    finally:
        await _end(process)


async def _until_it_answers(process: child.Process, url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:  # no proxy
        while process.poll() is None:
            try:
                if (await client.get(url)).is_success:
                    return
            except httpx.TransportError:  # not yet
                pass
            await asyncio.sleep(0.3)
    raise ChildProcessError


async def _end(process: child.Process) -> None:
    process.terminate()
    for _ in range(round(_END_SECONDS / 0.1)):
        if process.poll() is not None:
            break
        await asyncio.sleep(0.1)
    child.kill_group(process)  # its engine, too


def _last_line(log: Path) -> str:
    said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return said[-1] if said else "it printed nothing"
