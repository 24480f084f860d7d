"""A manager that is killed while it distils: what is in the bank by then is distilled, and never a dead letter."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from managed import LESSON, RETURN, Extractor, MakeRequest, Open, Setup, answered
from waiting import until

from verl_comprl.experience.schema import derive_id
from verl_comprl.extractor.dead_letters import DEAD_LETTERS
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.record.lines import decode

MAX_ATTEMPTS = 3
UPDATE = answered({"operation": "update", "ids": [1], "title": "open the door", "content": "take the key first"})


class Killed:
    """Ends the task that calls it, and with it all that it would do after, as a kill of the process does."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, *_: object, **__: object) -> Any:
        self.came = True
        raise asyncio.CancelledError


async def kill_in_attempt(number: int, setup: Setup, extractor: Extractor, owner: Any, name: str) -> None:
    """Let the attempts before ``number`` fail, and kill the process in that one, when it calls ``name``."""
    kill = Killed()
    setattr(owner, name, kill)
    extractor.replies["distill"] = [*(RuntimeError("no use") for _ in range(number - 1)), extractor.replies["distill"]]
    setup.start()
    await until(lambda: kill.came)
    await setup.manager.close()


def letters(folder: Path) -> list[str]:
    file = folder / "bank-queue" / DEAD_LETTERS
    return [letter["request"]["id"] for letter in map(json.loads, file.open("rb"))] if file.exists() else []


def events(folder: Path) -> list[tuple[str, str]]:
    """Return the events of a run, with the entry that is concerned, or the episode if none is."""
    file = folder / "bank.jsonl"
    lines = decode(file.open("rb")) if file.exists() else ()
    return [(event["event"], event.get("entry") or event["episode"]) for event in lines]


@pytest.mark.parametrize("attempt", [1, MAX_ATTEMPTS])
@pytest.mark.parametrize(
    ("answer", "owner", "name"),
    [
        (LESSON, "_journal", "wrote"),
        (LESSON, "_queue", "acknowledge"),
        (UPDATE, "_journal", "wrote"),
        (UPDATE, "_queue", "acknowledge"),
        (RETURN, "_queue", "acknowledge"),
    ],
    ids=("added-in-bank", "added-noted", "updated-in-bank", "updated-noted", "nothing-noted"),
)
async def test_an_episode_that_was_distilled_before_a_kill_is_not_distilled_again_and_not_given_up(
    open_manager: Open,
    extractor: Extractor,
    make_request: MakeRequest,
    tmp_path: Path,
    attempt: int,
    answer: str,
    owner: str,
    name: str,
) -> None:
    setup = await open_manager()
    (old,) = await setup.seed("open the lid")
    request = make_request("a", experience_ids=(old,), experience_texts=("open the lid",))
    await setup.manager.report(EpisodeReport(request, guided=False))
    extractor.replies["distill"] = answer
    await kill_in_attempt(attempt, setup, extractor, getattr(setup.manager, owner), name)

    extractor.replies["distill"] = RuntimeError("asked again")
    again = await open_manager(recover=True)
    again.start()
    metrics = await again.finished()
    assert (metrics["queue/dead"], metrics["queue/retried"], letters(tmp_path)) == (0, 0, [])
    new = derive_id(derive_id("distill", "a"), 0)
    assert {entry.id for entry in again.bank.entries()} == {RETURN: {old}, LESSON: {old, new}, UPDATE: {new}}[answer]
    assert (
        set(events(tmp_path))
        == {
            RETURN: {("nothing", "a")},
            LESSON: {("written", new)},
            UPDATE: {("written", new), ("removed", old)},
        }[answer]
    )
    await again.manager.close()
    assert len((await open_manager(recover=True)).manager._queue) == 0


@pytest.mark.parametrize("attempt", [1, MAX_ATTEMPTS])
async def test_an_episode_that_was_not_distilled_before_a_kill_is_tried_again_or_given_up(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path, attempt: int
) -> None:
    setup = await open_manager()
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    extractor.replies["distill"] = LESSON
    await kill_in_attempt(attempt, setup, extractor, setup.bank, "apply")

    extractor.replies["distill"] = LESSON
    again = await open_manager(recover=True)
    again.start()
    metrics = await again.finished()
    given_up = attempt == MAX_ATTEMPTS
    assert metrics["queue/dead"] == given_up and letters(tmp_path) == ["a"] * given_up
    assert len(again.bank) == (not given_up) and [event for event, _ in events(tmp_path)] == ["written"] * (
        not given_up
    )


async def test_lines_of_another_form_keep_no_manager_from_its_restart(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest, tmp_path: Path
) -> None:
    setup = await open_manager()
    await setup.manager.report(EpisodeReport(make_request("a"), guided=False))
    extractor.replies["distill"] = LESSON
    await kill_in_attempt(1, setup, extractor, setup.bank, "apply")
    (tmp_path / "bank.jsonl").write_text('{"event": "written"}\n{"event": "nothing", "episode": ["a"]}\n')
    (tmp_path / "bank-queue" / DEAD_LETTERS).write_text('{"request": {"id": ["a"]}}\n{"request": {}}\n{"request": 3}\n')

    extractor.replies["distill"] = LESSON
    again = await open_manager(recover=True)
    again.start()
    await again.finished()
    assert len(again.bank) == 1
