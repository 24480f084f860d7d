"""Turns, prompts and episodes that reach a limit on their tokens."""

import re
from dataclasses import replace

from scripted import ANSWER, GUIDE, MOVE_TURN, TOOL_TURN, ScriptedManager, ScriptedServer, call, play, row, unfinished

import env_adapters
from verl_comprl.manager.messages import Guide
from verl_comprl.rollout.episode import UNREAD
from verl_comprl.untrusted import CHARACTERS_PER_TOKEN


async def test_a_turn_that_is_cut_off_is_closed_without_loss(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3, cut_off=(0,))
    output = await play(make_loop(server, ScriptedManager(GUIDE)), **row(2))
    first = len(server.generated[0])
    assert output.response_ids[:first] == server.generated[0]
    assert output.response_ids[first] == tokenizer.eos_token_id
    assert output.response_mask[: first + 1] == [1] * first + [0]


async def test_turns_that_reach_their_limit_are_counted(make_loop, tokenizer):
    turn = len(tokenizer.encode(MOVE_TURN, add_special_tokens=False))
    for limit, cut in ((turn, 3.0), (turn + 1, 0.0)):
        loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 3), ScriptedManager(GUIDE))
        loop._settings = loop._settings.model_copy(update={"max_turn_tokens": limit})
        details = (await play(loop, **row(2))).extra_fields["reward_extra_info"]
        assert (details["cut_turns"], details["cut_off"]) == (cut, 0.0)


async def test_an_episode_that_no_longer_fits_ends_with_a_generated_token(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
    loop = make_loop(server, ScriptedManager(GUIDE), response_length=40)
    output = await play(loop, **row(2))
    assert output.extra_fields["reward_extra_info"]["cut_off"] == 1.0
    assert len(output.response_ids) <= 40
    assert output.response_mask[-1] == 1


async def test_an_entry_too_long_for_the_prompt_is_cut_at_its_end(make_loop, tokenizer):
    long = replace(GUIDE, text=f"{GUIDE.text}{' Look for stairs.' * 40}")

    async def prompt(guide: Guide, limit: int) -> tuple[str, float, int]:
        server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
        output = await play(make_loop(server, ScriptedManager(guide), prompt_length=limit), **row(0))
        ids = server.requests[0]["prompt_ids"]
        return tokenizer.decode(ids), output.extra_fields["reward_extra_info"]["cut_prompts"], len(ids)

    whole, cut, wanted = await prompt(long, 4096)
    assert cut == 0.0 and (await prompt(long, wanted))[:2] == (whole, 0.0)
    for excess in (1, 100):
        text, cut, length = await prompt(long, wanted - excess)
        assert cut == 1.0 and wanted - excess - 16 < length <= wanted - excess
        kept = text.partition(" …")[0]
        assert whole.startswith(kept) and (GUIDE.text or "") in kept and text.endswith(whole[-80:])
    # Where cutting the entry does not help, verl cuts the beginning.
    text, cut, length = await prompt(long, 40)
    assert cut == 1.0 and length == 40 and whole.endswith(text)


async def test_an_episode_that_no_longer_fits_is_graded_by_its_environment(make_loop, tokenizer):
    loop = make_loop(ScriptedServer(tokenizer, [call("dig")] * 9), ScriptedManager(GUIDE, ANSWER), response_length=300)
    output = await play(loop, **unfinished(2))
    assert output.reward_score == 0.5
    assert output.extra_fields["reward_extra_info"]["score"] == 0.5
    assert output.extra_fields["reward_extra_info"]["actions"] < 9


async def test_an_answer_that_no_longer_fits_is_not_credited_and_its_question_is_distilled(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [TOOL_TURN])
    answer = replace(ANSWER, text="Walk east. " * 100, experience_id="entry-2", experience_text="What it said.")
    manager = ScriptedManager(GUIDE, answer)
    output = await play(make_loop(server, manager, response_length=70), **row(0))
    details = output.extra_fields["reward_extra_info"]
    assert (details["tool_calls"], details["actions"]) == (1.0, 0.0)
    report = manager.calls[-1][1][0]
    assert report.record_ids == ("record-1",) and report.request.experience_ids == ("entry-1",)
    (last,) = report.request.turns
    assert last.observation in tokenizer.decode(output.prompt_ids) and last.response == ""
    assert [(item.query, item.answer) for item in last.questions] == [("Where do I go?", UNREAD)]


async def test_what_the_last_action_led_to_is_distilled_although_it_no_longer_fitted(make_loop, tokenizer):
    columns, manager = row(2), ScriptedManager(GUIDE)
    output = await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN]), manager, response_length=40), **columns)
    assert output.extra_fields["reward_extra_info"]["actions"] == 1.0
    request = manager.calls[-1][1][0].request
    environment = env_adapters.make("minihack", variant="room-ultimate", max_turns=3)
    environment.reset(seed=columns["extra_info"]["seed"])
    seen = environment.step(MOVE_TURN)[0]
    environment.close()
    assert [(turn.observation, turn.response) for turn in request.turns[1:]] == [(seen, "")]
    assert request.turns[0].response == MOVE_TURN and request.final_observation == "The episode is over."


async def test_texts_of_an_environment_are_cut_before_they_are_cleaned_recorded_and_reported(
    make_loop, tokenizer, queue
):
    """Tokenizers take seconds for them, in which all episodes of a worker stand still, and panic on some."""
    manager = ScriptedManager(GUIDE)
    columns = unfinished(2, "Talkative") | {"raw_prompt": [{"role": "user", "content": "Wait."}]}
    output = await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN]), manager), **columns)
    details = output.extra_fields["reward_extra_info"]
    assert (details["cut_off"], details["actions"]) == (1.0, 1.0) and queue.sent == {}
    request = manager.calls[-1][1][0].request
    record = queue.episodes["u_2"]
    seen, final = request.turns[1].observation, request.final_observation
    assert (record["unfinished"]["observation"], record["final_observation"]) == (seen, final)
    for text, begin in ((seen, "hello wörld"), (final, "The episode is over."), (request.goal, "Wait for the wörld")):
        kept, limit = re.sub(r"\n\[... \d+ characters left out ...\]\n", "", text), CHARACTERS_PER_TOKEN * 2048
        assert text.startswith(begin) and len(kept) == limit < len(text)
