"""Tokenizers that panic, which is no ``Exception``: as a failure it costs what it was about, and nothing else."""

from typing import Any

import pytest
from managed import LESSON, WHERE, Extractor, MakeRequest, Open, Setup, answered, merged

from verl_comprl.config.tree import MergeConfig
from verl_comprl.manager.messages import UNAVAILABLE, Answer, EpisodeReport


class Panic(BaseException):
    pass


@pytest.fixture(autouse=True)
def panicking(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the extractor's tokenizer panic at prompts with a curse."""
    encode = tokenizer.apply_chat_template

    def panic(conversation: list[dict[str, Any]], **options: Any) -> list[int]:
        if any("curse" in message["content"] for message in conversation):
            raise Panic("retry-limit-in-match over")
        return encode(conversation, **options)

    monkeypatch.setattr(tokenizer, "apply_chat_template", panic)


async def test_episodes_become_dead_letters_and_the_workers_go_on(
    running: Setup, extractor: Extractor, make_request: MakeRequest
) -> None:
    extractor.replies["distill"] = LESSON
    for id in ("curse 1", "curse 2", "curse 3", "fine"):  # more than there are workers
        await running.manager.report(EpisodeReport(make_request(id, goal=id), guided=False))
    metrics = await running.finished()
    assert (metrics["queue/dead"], metrics["failures/distill:LibraryPanic"]) == (3, 9)
    assert metrics["distillations/written"] == 1


async def test_a_question_gets_no_answer(running: Setup) -> None:
    await running.seed("open the door")
    assert await running.manager.search_and_ask("the curse?", *WHERE) == Answer("failed", UNAVAILABLE)
    assert (await running.manager.metrics())["failures/search_and_ask:LibraryPanic"] == 1


async def test_a_merge_goes_on_with_the_next_chunk(open_manager: Open, extractor: Extractor) -> None:
    setup = await open_manager(merge=MergeConfig(chunk=2))
    setup.start()
    await setup.seed("curse curse", "curse curse curse", "b b", "b b b")
    extractor.replies["merge"] = answered({"operation": "discard", "ids": [1]})
    assert await setup.manager.merge()
    await merged(setup)
    assert (await setup.manager.metrics())["failures/merge:LibraryPanic"] == 1
    left = [entry.title for entry in setup.bank.entries()]
    assert len(left) == 3 and {"curse curse", "curse curse curse"} < set(left)
