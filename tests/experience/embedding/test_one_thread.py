"""Order and joining of embedding requests; the encoder is held up so that requests meet."""

import asyncio
import threading

import numpy as np
import pytest

from verl_comprl.errors import LibraryPanic
from verl_comprl.experience.embedding.one_thread import OneThread


class HeldUp:
    """Encoder whose first call lasts until it is let go; a text's vector is its number."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[str]]] = []
        self.go = threading.Event()

    def __call__(self, kind: str, texts: list[str]) -> np.ndarray:
        self.calls.append((kind, texts))
        assert self.go.wait(10)
        return np.array([[float(text)] for text in texts], np.float32)


async def test_queries_come_before_documents_and_what_waits_is_joined() -> None:
    encoder = HeldUp()
    thread = OneThread(encoder, batch_size=4)
    first = asyncio.create_task(thread.vectors("document", ["0"]))
    while not encoder.calls:
        await asyncio.sleep(0.001)
    documents = [asyncio.create_task(thread.vectors("document", [str(n), str(n + 1)])) for n in (10, 20, 30)]
    queries = [asyncio.create_task(thread.vectors("query", [str(n)])) for n in (1, 2)]
    await asyncio.sleep(0)
    encoder.go.set()
    found = await asyncio.gather(first, *documents, *queries)
    assert encoder.calls == [
        ("document", ["0"]),
        ("query", ["1", "2"]),
        ("document", ["10", "11", "20", "21"]),
        ("document", ["30", "31"]),
    ]
    assert [vectors[:, 0].tolist() for vectors in found] == [[0], [10, 11], [20, 21], [30, 31], [1], [2]]


async def test_an_error_reaches_those_it_concerns_and_the_thread_goes_on() -> None:
    encoder = HeldUp()
    encoder.go.set()
    thread = OneThread(encoder, batch_size=4)
    with pytest.raises(ValueError, match="no number"):
        await thread.vectors("query", ["no number"])
    assert (await thread.vectors("query", ["3"])).tolist() == [[3]]


async def test_a_request_that_was_cancelled_is_not_computed() -> None:
    encoder = HeldUp()
    thread = OneThread(encoder, batch_size=4)
    first = asyncio.create_task(thread.vectors("query", ["0"]))
    while not encoder.calls:
        await asyncio.sleep(0.001)
    cancelled, kept = (asyncio.create_task(thread.vectors("query", [text])) for text in ("1", "2"))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.sleep(0)
    encoder.go.set()
    assert [(await task).tolist() for task in (first, kept)] == [[[0]], [[2]]]
    assert encoder.calls[1:] == [("query", ["2"])]


async def test_a_request_beyond_the_limit_is_one_call_of_the_encoder() -> None:
    encoder = HeldUp()
    encoder.go.set()
    vectors = await OneThread(encoder, batch_size=2).vectors("query", list("12345"))
    assert vectors[:, 0].tolist() == [1, 2, 3, 4, 5] and len(encoder.calls) == 1


async def test_a_panic_of_a_tokenizer_is_an_error_of_its_request() -> None:
    class Panic(BaseException):
        pass

    def encode(kind: str, texts: list[str]) -> np.ndarray:
        if texts == ["long"]:
            raise Panic("retry limit")
        return np.ones((1, 1), np.float32)

    thread = OneThread(encode, batch_size=4)
    async with asyncio.timeout(30):
        with pytest.raises(LibraryPanic, match="Panic: retry limit"):
            await thread.vectors("query", ["long"])
        assert (await thread.vectors("query", ["short"])).tolist() == [[1]]
