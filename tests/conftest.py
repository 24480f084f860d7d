"""Fixtures shared by all packages: verl on the CPU, records, and an extractor that answers from a script."""

import logging
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TextIO

# Before anything imports verl. Subprocesses inherit it.
os.environ.setdefault("VERL_PLATFORM", "cpu")
os.environ.setdefault("VERL_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import pytest
from hypothesis import settings

from verl_comprl.experience.schema import DistillationRequest, Outcome, Turn
from verl_comprl.extractor.calls import ExtractorCalls, Generate, Generation
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.record import redaction

# The first example of a test may import verl, which takes seconds.
settings.register_profile("comprl", deadline=None)
settings.load_profile("comprl")

Reply = Callable[[str], Awaitable[str]]
WEIGHT_VERSION = 7


class CharacterTokenizer:
    """One token per character, so that ids can be read and counted."""

    def apply_chat_template(self, conversation: Sequence[dict[str, Any]], **_: Any) -> list[int]:
        text = "".join(f"[{message['role']}]\n{message['content']}\n" for message in conversation)
        return [ord(character) for character in text]

    def decode(self, token_ids: Sequence[int], **_: Any) -> str:
        return "".join(map(chr, token_ids))


@pytest.fixture(autouse=True)
def warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    # verl's import sets the root logger to ERROR, so what a test sees would depend on the tests before it.
    caplog.set_level(logging.WARNING, logger="verl_comprl")


@pytest.fixture(autouse=True)
def no_secrets_of_other_tests() -> None:
    # A process remembers the secrets that its variables have had; any text may be one somewhere. Not by monkeypatch: it
    # would be set up first for every test, and so undo what a test patches after that test's other fixtures have ended.
    redaction._seen = frozenset()


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Removes variables of the environment; after the test they are as before, whatever the code has set."""

    def remove(*names: str) -> None:
        for name in names:
            monkeypatch.setenv(name, "-")  # monkeypatch forgets a removal where there was nothing to remove
            monkeypatch.delenv(name)

    return remove


@pytest.fixture
def full_pipe() -> Iterator[tuple[int, TextIO]]:
    """A pipe that takes no more: the descriptor that reads it, and the file that writes to it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, b"x" * 4096)
    os.set_blocking(writing, True)
    file = os.fdopen(writing, "w", encoding="utf-8")
    yield reading, file
    with suppress(OSError):
        os.close(reading)  # which ends a write that waits
    with suppress(OSError):
        file.close()


@pytest.fixture
def import_backend() -> Callable[[str], Any]:
    """Imports a library; one that is there but cannot be imported is an error, and no reason to skip a test."""

    def imported(name: str) -> Any:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed; make long installs it")
        return import_module(name)

    return imported


@pytest.fixture
def mlflow(import_backend: Callable[[str], Any]) -> Any:
    return import_backend("mlflow")


@pytest.fixture
def tokenizer() -> CharacterTokenizer:
    return CharacterTokenizer()


@pytest.fixture
def make_calls(tokenizer: CharacterTokenizer) -> Callable[..., ExtractorCalls]:
    """Return a maker of real calls whose model is ``reply``: prompt text to answer text."""

    def make(
        reply: Reply,
        *,
        max_prompt_tokens: int = 100_000,
        max_operations: int = 3,
        votes: bool = False,
        through: Callable[[Generate], Generate] = lambda generate: generate,
    ) -> ExtractorCalls:
        async def generate(prompt: Prompt) -> Generation:
            answer = await reply(tokenizer.decode(prompt.ids))
            ids = [ord(character) for character in answer]
            return Generation(ids, [-0.01 * position for position in range(len(ids))], WEIGHT_VERSION)

        return ExtractorCalls(
            tokenizer,
            through(generate),
            max_prompt_tokens=max_prompt_tokens,
            max_operations=max_operations,
            votes=votes,
        )

    return make


@pytest.fixture
def make_record() -> Callable[..., GenerationRecord]:
    def make(id: str, **fields: Any) -> GenerationRecord:
        defaults = {
            "kind": CallKind.DISTILL,
            "prompt_ids": (1, 2, 3),
            "response_ids": (4, 5),
            "response_log_probs": (-0.25, -1.5),
            "weight_version": 0,
        }
        return GenerationRecord(id=id, **{**defaults, **fields})

    return make


@pytest.fixture
def make_request() -> Callable[..., DistillationRequest]:
    def make(id: str, *, success: bool = True, **fields: Any) -> DistillationRequest:
        defaults = {
            "task": "fetch",
            "environment": "room",
            "goal": "open the door",
            "turns": (Turn(observation="a door", response="<action>open</action>"),),
        }
        return DistillationRequest(id=id, outcome=Outcome(success=success), **{**defaults, **fields})

    return make
