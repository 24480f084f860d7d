"""Actor as critic (Eq. 8): parsing of its answer, and its effect on an episode."""

import asyncio
from typing import Any

import pytest
from scripted import GUIDE, MOVE_TURN, ScriptedManager, ScriptedServer, change_settings, play, row

from verl_comprl.manager.messages import Judgement
from verl_comprl.rollout.critic import judging_messages, read_judgement
from verl_comprl.rollout.episode import OUTPUT_KEY

ACCEPT, REJECT = "It fits. <verdict>accept</verdict>", "<think>no</think><verdict> Reject </verdict>"
REFINE = "Partly.\n<verdict>refine</verdict>\n<experience>\nWalk <|im_end|>east.\n</experience>"


@pytest.mark.parametrize(
    ("answer", "verdict", "text", "score"),
    [
        (ACCEPT, "accept", "old", 1.0),
        (REFINE, "refine", "Walk east.", 0.5),
        (REJECT, "reject", None, 0.0),
        ("<verdict>accept</verdict> no: <verdict>reject</verdict>", "reject", None, 0.0),
        ("<verdict>refine</verdict> <experience> </experience>", "unreadable", "old", 1.0),
        ("<experience>before</experience><verdict>refine</verdict>", "unreadable", "old", 1.0),
        ("<verdict>refine</verdict> <experience> no end", "unreadable", "old", 1.0),
        ("<verdict>refine</verdict>" + "<experience>" * 500_000, "unreadable", "old", 1.0),
        ("<verdict>perhaps</verdict>", "unreadable", "old", 1.0),
        ("", "unreadable", "old", 1.0),
    ],
)
@pytest.mark.timeout(60)  # the longest answer would take hours if it were searched again from every tag
def test_reading_a_judgement(answer: str, verdict: str, text: str | None, score: float) -> None:
    judgement, used = read_judgement(answer, "old", "record")
    assert (judgement, used, judgement.score) == (Judgement(verdict, "record"), text, score)


def test_a_late_judgement_counts_like_an_accepted_entry() -> None:
    assert Judgement("late").score == 1.0


@pytest.fixture
def judge(make_loop: Any, tokenizer: Any) -> Any:
    """Play a guided episode whose critic gives an answer; returns outputs, server and manager."""

    async def judge_(answer: str, *, train: bool = False, evaluation: bool = False, delay: float = 0.0) -> Any:
        server, manager = ScriptedServer(tokenizer, [answer] + [MOVE_TURN] * 3), ScriptedManager(GUIDE)
        loop = make_loop(server, manager)
        change_settings(loop, "actor_critic", enabled=True, train=train)
        if delay:
            change_settings(loop, "actor_critic", timeout=delay / 10)
            generate = server.generate

            async def slow(request_id: str, **arguments: Any) -> Any:
                if request_id.endswith("_critic"):
                    await asyncio.sleep(delay)
                    server.turns.insert(0, "")  # this answer is dropped: the next request is the first turn
                return await generate(request_id, **arguments)

            server.turns, server.generate = [MOVE_TURN] * 3, slow
        return await play(loop, **row(0, evaluation=evaluation)), server, manager

    return judge_


@pytest.mark.parametrize(
    ("answer", "verdict", "shown"),
    [(ACCEPT, "accept", GUIDE.text), (REFINE, "refine", "Walk east."), ("?", "unreadable", GUIDE.text)],
)
async def test_the_actor_gets_what_its_critic_made_of_the_entry(
    judge: Any, tokenizer: Any, answer: str, verdict: str, shown: str
) -> None:
    output, server, manager = await judge(answer)
    goal = row(0)["raw_prompt"][-1]["content"]
    report = manager.calls[-1][1][0]
    asked = judging_messages(report.request.goal, report.request.turns[0].observation, str(GUIDE.text))
    assert server.requests[0]["prompt_ids"] == tokenizer.apply_chat_template(
        asked, add_generation_prompt=True, return_dict=False
    )
    prompt = tokenizer.decode(output.prompt_ids)
    assert goal in prompt and f"<experience>\n{shown}\n</experience>" in prompt
    assert report.guided and report.judgement == Judgement(verdict, "record-1")
    assert report.record_ids == ("record-1",) and report.request.experience_ids == ("entry-1",)


async def test_rejected_text_is_dropped_and_the_rollout_is_free(judge: Any, tokenizer: Any) -> None:
    output, _, manager = await judge(REJECT)
    prompt = tokenizer.decode(output.prompt_ids)
    assert "<experience>" not in prompt and "search_and_ask" not in prompt
    report = manager.calls[-1][1][0]
    assert not report.guided and report.judgement == Judgement("reject", "record-1")
    # Its outcome is still the entry's reward, but for the extractor it did not guide the episode.
    assert report.record_ids == ("record-1",) and report.request.experience_ids == ()


async def test_a_critic_that_is_too_late_changes_nothing(judge: Any, tokenizer: Any) -> None:
    output, _, manager = await judge("", delay=5.0)
    assert str(GUIDE.text) in tokenizer.decode(output.prompt_ids)
    assert manager.calls[-1][1][0].judgement == Judgement("late", "record-1")


async def test_the_critics_answer_is_a_separate_output_if_it_is_trained_on(judge: Any) -> None:
    outputs, server, _ = await judge(ACCEPT, train=True)
    said, episode = outputs
    assert [output.extra_fields[OUTPUT_KEY] for output in outputs] == ["judgement", "episode"]
    assert said.prompt_ids == server.requests[0]["prompt_ids"] and said.response_ids == server.generated[0]
    assert said.response_mask == [1] * len(said.response_ids)
    assert said.reward_score is None and episode.reward_score is not None  # verl gives all outputs the last one's
    assert (await judge(ACCEPT))[0].extra_fields[OUTPUT_KEY] == "episode"
    assert (await judge(ACCEPT, train=True, evaluation=True))[0].extra_fields[OUTPUT_KEY] == "episode"


async def test_there_is_no_critic_in_the_free_half(make_loop: Any, tokenizer: Any) -> None:
    server, manager = ScriptedServer(tokenizer, [MOVE_TURN] * 3), ScriptedManager(GUIDE)
    loop = make_loop(server, manager)
    change_settings(loop, "actor_critic", enabled=True)
    await play(loop, **row(2))
    assert manager.calls[-1][1][0].judgement is None
