"""The warning about an extractor that has written nothing readable from the start."""

import logging

import pytest
from managed import LESSON, WHERE, Extractor, MakeRequest, Open
from package_log import ours  # pyright: ignore[reportMissingImports]  (tests/experience)

from verl_comprl.manager.format_watch import FIRST_ANSWERS
from verl_comprl.manager.messages import EpisodeReport

LOGGER = "verl_comprl.manager.format_watch"
REFUSAL = "I would rather not."


@pytest.mark.parametrize(
    ("readable", "warnings"),
    [(None, 1), (FIRST_ANSWERS, 1), (FIRST_ANSWERS - 1, 0), (0, 0)],
    ids=["never", "the first after the limit", "the last before it", "the very first"],
)
async def test_one_warning_if_none_of_the_first_answers_can_be_parsed(
    open_manager: Open,
    extractor: Extractor,
    make_request: MakeRequest,
    caplog: pytest.LogCaptureFixture,
    readable: int | None,
    warnings: int,
) -> None:
    setup = await open_manager(extractor_settings={"distillation_workers": 1})
    setup.start()
    count = FIRST_ANSWERS + 2
    extractor.replies["distill"] = [LESSON if number == readable else REFUSAL for number in range(count)]
    with caplog.at_level(logging.WARNING, LOGGER):
        for number in range(count):
            await setup.manager.report(EpisodeReport(make_request(f"episode {number}"), guided=False))
        assert await setup.manager.drain(60)
        metrics = await setup.manager.metrics()
    assert metrics["distillations/unreadable"] == count - (readable is not None)
    told = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(told) == warnings
    if told:
        assert told[0].startswith(f"none of the extractor's first {FIRST_ANSWERS} answers could be parsed")
        assert "docs/models.md" in told[0] and "\n" not in told[0]


async def test_answers_to_questions_count_as_well(
    open_manager: Open, extractor: Extractor, caplog: pytest.LogCaptureFixture
) -> None:
    setup = await open_manager()
    setup.start()
    await setup.seed("open the door")
    extractor.replies["answer"] = REFUSAL
    with caplog.at_level(logging.WARNING, LOGGER):
        for _ in range(FIRST_ANSWERS):
            assert not ours(caplog)
            assert (await setup.manager.search_and_ask("open the door", *WHERE)).status == "malformed"
    assert [record.name for record in ours(caplog)] == [LOGGER]
