"""Output for self-distillation: the exact tokens of a successful guided episode, without its experience."""

from typing import Any

import pytest
from scripted import (
    ANSWER,
    GUIDE,
    TOOL_TURN,
    ScriptedManager,
    ScriptedServer,
    call,
    change_settings,
    play,
    row,
    unfinished,
)

import env_adapters
from env_adapters.minihack.expert import ScriptedPolicy
from verl_comprl.rollout.episode import OUTPUT_KEY
from verl_comprl.rollout.messages import initial_messages, observation_message

MAX_TURNS = 30


@pytest.fixture(scope="module")
def solution() -> tuple[list[str], list[str]]:
    """Turns that solve the episode of ``row``, and what is seen before each."""
    columns = row(0, max_turns=MAX_TURNS)
    environment = env_adapters.make("minihack", variant="room-ultimate", max_turns=MAX_TURNS)
    observation, _ = environment.reset(seed=columns["extra_info"]["seed"])
    policy, turns, seen, over = ScriptedPolicy(), [], [], False
    while not over:
        seen.append(observation)
        turns.append(f"<think>There.</think>\n<action>{policy.act(observation)}</action>")
        observation, _, terminated, truncated, info = environment.step(turns[-1])
        over = terminated or truncated
    environment.close()
    assert info["success"]
    return turns, seen


def distilling_loop(make_loop: Any, server: ScriptedServer, every: int = 1, source: str = "guided") -> Any:
    loop = make_loop(server, ScriptedManager(GUIDE, ANSWER), response_length=8192)
    change_settings(loop, "self_distillation", weight=0.1, every=every, source=source)
    return loop


async def test_the_output_has_the_turns_without_experience_and_tool_calls(
    make_loop: Any, tokenizer: Any, solution: tuple[list[str], list[str]]
) -> None:
    turns, seen = solution
    server = ScriptedServer(tokenizer, [turns[0], TOOL_TURN, *turns[1:]])
    outputs = await play(distilling_loop(make_loop, server), **row(0, max_turns=MAX_TURNS))
    student, played = outputs
    assert [output.extra_fields[OUTPUT_KEY] for output in outputs] == ["distillation", "episode"]
    assert str(GUIDE.text) in tokenizer.decode(played.prompt_ids)

    # The chat template, applied to what a free actor would have seen, is the independent truth.
    messages = initial_messages(row(0, max_turns=MAX_TURNS)["raw_prompt"], seen[0])
    assert student.prompt_ids == tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    for number, turn in enumerate(turns):
        messages += [observation_message(seen[number])] if number else []
        messages.append({"role": "assistant", "content": turn})
    ids = student.prompt_ids + student.response_ids
    assert ids == tokenizer.apply_chat_template(messages, return_dict=False)[: len(ids)]

    # Targets are the turns as they were generated, in order, without the question.
    targets = [token for token, kept in zip(student.response_ids, student.response_mask, strict=True) if kept]
    generated = [server.generated[0], *server.generated[2:]]
    assert targets == [token for turn in generated for token in turn]


async def test_the_prompt_is_that_of_a_free_episode_also_where_the_environment_has_tools(
    make_loop: Any, tokenizer: Any
) -> None:
    turns = [call("dig")] * 2
    guided = await play(distilling_loop(make_loop, ScriptedServer(tokenizer, list(turns))), **unfinished(0, "Dug"))
    free = await play(distilling_loop(make_loop, ScriptedServer(tokenizer, list(turns))), **unfinished(2, "Dug"))
    student, played = guided
    assert "search_and_ask" in tokenizer.decode(played.prompt_ids) and '"dig"' in tokenizer.decode(free.prompt_ids)
    assert (student.prompt_ids, student.response_ids) == (free.prompt_ids, free.response_ids)


@pytest.mark.parametrize(
    ("columns", "every", "source"),
    [
        ({"session_id": 2}, 1, "guided"),  # the other half
        ({"session_id": 0}, 1, "free"),
        ({"session_id": 0, "evaluation": True}, 1, "guided"),
        ({"session_id": 1, "evaluation": True}, 1, "free"),
        ({"session_id": 0}, 2, "guided"),  # not at step 5
    ],
)
async def test_nothing_else_is_distilled(
    make_loop: Any,
    tokenizer: Any,
    solution: tuple[list[str], list[str]],
    columns: dict[str, Any],
    every: int,
    source: str,
) -> None:
    server = ScriptedServer(tokenizer, list(solution[0]))
    output = await play(distilling_loop(make_loop, server, every, source), **row(**columns, max_turns=MAX_TURNS))
    assert output.extra_fields[OUTPUT_KEY] == "episode"
    assert output.extra_fields["reward_extra_info"]["success"] == 1.0


async def test_a_free_success_is_imitated_as_it_was_played(
    make_loop: Any, tokenizer: Any, solution: tuple[list[str], list[str]]
) -> None:
    """The arm self_imitation, the control of self-distillation."""
    server = ScriptedServer(tokenizer, list(solution[0]))
    loop = distilling_loop(make_loop, server, source="free")
    outputs = await play(loop, **row(2, max_turns=MAX_TURNS))
    assert [output.extra_fields[OUTPUT_KEY] for output in outputs] == ["distillation", "episode"]
    imitated, played = outputs
    assert (imitated.prompt_ids, imitated.response_ids, imitated.response_mask) == (
        played.prompt_ids,
        played.response_ids,
        played.response_mask,
    )


async def test_an_episode_without_success_is_not_distilled(make_loop: Any, tokenizer: Any) -> None:
    server = ScriptedServer(tokenizer, ["no action"] * 3)
    output = await play(distilling_loop(make_loop, server), **row(0))
    assert output.extra_fields[OUTPUT_KEY] == "episode"
