"""One bank of three tasks with a contradiction and a near-copy in it, merged by an extractor that reads the prompt.

The bank, the embedder and the manager are the real ones; the extractor follows the prompt by rule (``careful_merger``).
"""

from collections.abc import Callable

import pytest
from careful_merger import merge_carefully, read_entries
from managed import Extractor, MakeRequest, Open, Setup, merged

from verl_comprl.experience import Add, Experience, SentenceTransformerEmbedder
from verl_comprl.manager.messages import EpisodeReport

pytestmark = pytest.mark.slow

ROOM, SHOP, HOUSE = "minihack/room", "webshop", "alfworld"
LESSONS = {
    ROOM: (
        "Explore the dark\nWalk towards cells that you have not seen yet until the staircase shows up.",
        "Rock is solid\nTurn along the wall where stone blocks the way.",
        "Boulders\nPush a boulder only if the cell behind it is free.",
        "Diagonal steps\nMove diagonally where that is shorter than two straight moves.",
        "Hunger\nEat a corpse only if the monster has just died.",
    ),
    SHOP: (
        "Short queries\nSearch for the kind of product and one attribute, not for the whole instruction.",
        "Price limit\nCompare the price of the chosen size with the limit in the instruction.",
        "Options first\nClick colour and size on the product page, then buy.",
        "Next page\nTurn to the next page of results when no title fits.",
        "Hidden features\nOpen the list of features, since the title does not name all attributes.",
    ),
    HOUSE: (
        "Where mugs are\nLook for a mug on the counter and in the cabinets of the kitchen.",
        "Closed drawers\nOpen a drawer to see what lies in it.",
        "Heat food\nCarry the egg to the microwave and heat it there.",
        "Cool food\nCarry the apple to the fridge and cool it there.",
        "Use the lamp\nTake the book to the desk lamp and switch the lamp on.",
    ),
}
FIGHT = "A ghost in the corridor\nWhen a ghost blocks the corridor, fight the ghost with your sword."
FLEE = "Ghost blocks the corridor\nWhen a ghost blocks the corridor, never fight the ghost with your sword."
READ_SHOP = "Read before you act\nRead the whole page and do one action per turn."
READ_HOUSE = "Read, then act\nBefore you act, read the whole page and do one action per turn."

Record = tuple[int, int]
"""Uses and successes."""


@pytest.fixture(scope="module")
def embedder() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder("builtin", device="cpu")


@pytest.fixture
def reply(extractor: Extractor) -> Extractor:
    extractor.replies["merge"] = merge_carefully
    return extractor


class Mix:
    """A bank that is filled as a run does it: each entry by a call of its own, judged by episodes."""

    def __init__(self, setup: Setup, make_request: MakeRequest) -> None:
        self.setup = setup
        self._make_request = make_request
        self._episodes = 0

    async def write(self, text: str, task: str, *, step: int = 0) -> str:
        title, _, content = text.partition("\n")
        report = await self.setup.bank.apply(
            [Add(title=title, content=content)],
            call_id=f"call {task} {title}",
            listed=(),
            task=task,
            environment=task.partition("/")[0],
            step=step,
            weight_version=0,
        )
        (id,) = report.new_ids
        return id

    async def fill(self) -> None:
        """Write the lessons in turns, task by task, so that neighbours are far apart in the bank's order."""
        for texts in zip(*LESSONS.values(), strict=True):
            for task, text in zip(LESSONS, texts, strict=True):
                await self.write(text, task)

    async def play(self, task: str, record: Record, *ids: str, records: tuple[str, ...] = ()) -> None:
        """Report episodes that read ``ids``, free ones if there are none."""
        uses, successes = record
        for number in range(uses):
            self._episodes += 1
            request = self._make_request(
                f"{self._episodes}_0", task=task, success=number < successes, experience_ids=ids
            )
            await self.setup.manager.report(EpisodeReport(request, guided=bool(ids), record_ids=records))

    async def merge(self, *, step: int = 30) -> None:
        await self.setup.manager.collect(step)
        assert await self.setup.manager.merge()
        await merged(self.setup)

    def entries(self) -> dict[str, Experience]:
        return {entry.id: entry for entry in self.setup.bank.entries()}


@pytest.fixture
def open_mix(open_manager: Open, reply: Extractor, make_request: MakeRequest) -> Callable:
    async def open_() -> Mix:
        setup = await open_manager(extractor_settings={"distill": False, "batch_size": 1})
        setup.start()
        return Mix(setup, make_request)

    return open_


@pytest.mark.parametrize(
    ("fight", "flee", "kept"),
    [
        ((14, 2), (9, 8), {FLEE}),
        ((9, 8), (14, 2), {FIGHT}),
        ((12, 9), (1, 1), {FIGHT}),  # one success proves little
        ((0, 0), (8, 6), {FLEE}),
        ((0, 0), (0, 0), {FIGHT, FLEE}),  # nothing is known of either
    ],
)
async def test_of_two_contradicting_entries_the_one_with_the_better_record_stays(
    open_mix: Callable, extractor: Extractor, fight: Record, flee: Record, kept: set[str]
) -> None:
    mix = await open_mix()
    planted = {FIGHT: await mix.write(FIGHT, ROOM)}
    await mix.fill()
    planted[FLEE] = await mix.write(FLEE, ROOM, step=18)
    copies = [await mix.write(READ_SHOP, SHOP, step=3), await mix.write(READ_HOUSE, HOUSE, step=20)]
    await mix.play(ROOM, (10, 4))
    await mix.play(ROOM, fight, planted[FIGHT])
    await mix.play(ROOM, flee, planted[FLEE])
    await mix.play(SHOP, (3, 2), copies[0])
    await mix.setup.manager.collect(30)  # compares the uses with the free half
    before = mix.entries()
    await mix.merge()

    after = mix.entries()
    assert {text for text, id in planted.items() if id in after} == kept
    (copy,) = after.keys() - before.keys()
    assert (after[copy].tasks, after[copy].environments) == ((HOUSE, SHOP), (HOUSE, SHOP))
    assert after[copy].text == READ_SHOP and set(after[copy].parents) == set(copies)
    # A new text starts without uses; whatever stays keeps text, record and counters.
    assert after[copy].usage == () and after[copy].created_step == 30
    untouched = before.keys() - set(copies) - {planted[text] for text in planted.keys() - kept}
    assert {id: after[id] for id in untouched} == {id: before[id] for id in untouched}
    assert after.keys() == untouched | {copy}

    metrics = await mix.setup.manager.metrics()
    assert (metrics["operations/merged"], metrics.get("operations/discarded", 0)) == (1, 2 - len(kept))
    assert not [name for name in metrics if name == "operations/rejected" or name.startswith("parse_failures")]
    shown = [entry.text for _, prompt in extractor.prompts for entry in read_entries(prompt)]
    assert {entry.text for entry in before.values()} <= set(shown)

    # From now on outcomes reward the merge call that wrote the common text, not the two calls before it.
    record_id = after[copy].record_id
    guide = await mix.setup.manager.guide(READ_HOUSE, HOUSE, HOUSE)
    assert (guide.experience_id, guide.record_id) == (copy, record_id)
    await mix.play(HOUSE, (1, 1), copy, records=(record_id,))
    await mix.setup.manager.collect(31)
    batch = await mix.setup.manager.next_batch()
    assert batch is not None and [(record.id, record.kind) for record in batch.records] == [(record_id, "merge")]
    entry = mix.entries()[copy]
    assert [(usage.task, usage.uses, usage.successes) for usage in entry.usage] == [(HOUSE, 1, 1)]


async def test_of_contradicting_entries_that_both_help_the_text_says_in_which_task_each_holds(
    open_mix: Callable,
) -> None:
    mix = await open_mix()
    fight = await mix.write(FIGHT, ROOM)
    await mix.fill()
    flee = await mix.write(FLEE, SHOP)
    for task, id in ((ROOM, fight), (SHOP, flee)):
        await mix.play(task, (10, 3))
        await mix.play(task, (8, 7), id)
    await mix.merge()
    (entry,) = (entry for entry in mix.entries().values() if entry.parents)
    assert set(entry.parents) == {fight, flee} and entry.tasks == (ROOM, SHOP)
    assert f"In {ROOM}: When a ghost" in entry.content and f"In {SHOP}: When a ghost" in entry.content


def test_the_rule_reads_what_a_prompt_says() -> None:
    prompt = (
        'Answer.\n{"operation": "retain"} {"operation": "merge"} {"operation": "discard"}\nEntries:\n'
        "1. (tasks: a, b; age 1 step; a: used 1 time and read in 2 answers, 50% success (25% without); "
        "b: used 4 times, 75% success)\nTitle\nText\nwith 2. (a list)\n\n"
        "2. (tasks: a; age 7 steps; not used yet)\nOther\nUnlike"
    )
    first, second = read_entries(prompt)
    assert (first.index, first.tasks, first.age, first.episodes) == (1, ("a", "b"), 1, 6.0)
    assert first.gain == pytest.approx((2 * 0.25 + 4 * 0.25) / 8) and first.text == "Title\nText\nwith 2. (a list)"
    assert (second.tasks, second.age, second.episodes, second.gain) == (("a",), 7, 0.0, 0.0)
