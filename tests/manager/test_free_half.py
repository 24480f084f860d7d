"""Entries are compared with the free half of the steps in which they were used."""

from collections.abc import Sequence
from pathlib import Path

from managed import Extractor, MakeRequest, Open, Setup, merged

from verl_comprl.experience.updates.quality import Comparison, compare_with_free
from verl_comprl.manager.messages import EpisodeReport


async def report(
    setup: Setup, make_request: MakeRequest, step: int, ids: Sequence[str], success: bool, number: int = 0
) -> None:
    request = make_request(f"{step} {ids} {number}", success=success, experience_ids=tuple(ids))
    await setup.manager.report(EpisodeReport(request, guided=bool(ids)))


def comparison(setup: Setup, id: str) -> Comparison:
    entry = setup.bank.get(id)
    assert entry is not None
    return compare_with_free(entry)


async def test_old_uses_are_not_compared_with_what_the_actor_has_learned_since(
    open_manager: Open, extractor: Extractor, make_request: MakeRequest
) -> None:
    setup = await open_manager(bank={"retire_min_uses": 4, "retire_margin": 0.1}, extractor_settings={"distill": False})
    setup.start()
    entry, _ = await setup.seed("open the door", "pray")
    # The free half goes from 1 of 8 to 7 of 8; the entry succeeds in every second episode of steps 1 to 4.
    for step in range(1, 8):
        if step <= 4:
            await report(setup, make_request, step, (entry,), step % 2 == 0)
        for number in range(8):
            await report(setup, make_request, step, (), number < step, number)
        await setup.manager.collect(step)
    # 1/8, then the means of two steps: 3/16, 5/16, 7/16.
    assert comparison(setup, entry) == Comparison(4, 2, (2 + 3 + 5 + 7) / 16 / 4)
    kept = setup.bank.get(entry)
    assert kept is not None and not kept.quarantined  # 50 % are less than the 81 % of the last two steps
    await setup.manager.merge()
    await merged(setup)
    assert "used 4 times, 50% success (27% without)" in extractor.prompts[-1][1]


async def test_without_a_free_half_nothing_is_compared(open_manager: Open, make_request: MakeRequest) -> None:
    """As in the arm all_guided, whose warm-up has one."""
    setup = await open_manager(extractor_settings={"distill": False})
    (entry,) = await setup.seed("open the door")
    for number in range(4):
        await report(setup, make_request, 1, (), False, number)
    await setup.manager.collect(1)
    for step in (2, 3, 4):
        await report(setup, make_request, step, (entry,), True)
        await setup.manager.collect(step)
    assert comparison(setup, entry) == Comparison(1, 1, 0)  # that of step 2, right after the warm-up


async def test_few_free_episodes_say_nothing(open_manager: Open, make_request: MakeRequest) -> None:
    setup = await open_manager(extractor_settings={"distill": False})
    (entry,) = await setup.seed("open the door")
    await report(setup, make_request, 1, (entry,), False)
    for number in range(3):
        await report(setup, make_request, 1, (), True, number)
    await setup.manager.collect(1)
    assert comparison(setup, entry) == Comparison(0, 0, 0)


async def test_uses_that_wait_for_the_end_of_their_step_are_in_a_checkpoint(
    open_manager: Open, make_request: MakeRequest, tmp_path: Path
) -> None:
    first = await open_manager("first", extractor_settings={"distill": False})
    guide, asked = await first.seed("open the door", "pray")
    for number in range(4):
        await report(first, make_request, 1, (), number == 0, number)
    await first.manager.collect(1)
    await report(first, make_request, 2, (guide, asked), True)
    await first.manager.save(str(tmp_path / "snapshot"))
    second = await open_manager("second", extractor_settings={"distill": False})
    await second.manager.restore(str(tmp_path / "snapshot"))
    for setup in (first, second):
        for number in range(4):
            await report(setup, make_request, 2, (), True, number)
        await setup.manager.collect(2)
        # 1 of 4, then 4 of 4: 5 of 8. The entry that was only asked for has half the weight.
        assert comparison(setup, guide) == Comparison(1, 1, 0.625)
        assert comparison(setup, asked) == Comparison(0.5, 0.5, 0.625)
