"""Episodes of the agent loop with the real environment and tokenizer; server and manager are scripted."""

import asyncio
import json
import time
from dataclasses import replace
from operator import ge
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from ray.exceptions import RayActorError
from scripted import (
    ANSWER,
    GUIDE,
    MOVE_TURN,
    TOOL_TURN,
    ScriptedManager,
    ScriptedServer,
    call,
    change_settings,
    play,
    row,
    unfinished,
)
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

import env_adapters
from verl_comprl.manager.messages import Guide
from verl_comprl.platform.under_way import under_way
from verl_comprl.rollout.messages import initial_messages
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA


async def test_tokens_and_mask_of_an_episode_with_a_tool_call_are_exact(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, "no action at all", MOVE_TURN])
    manager = ScriptedManager(GUIDE, ANSWER)
    loop = make_loop(server, manager)
    output = await play(loop, **row(0))

    ids = output.prompt_ids + output.response_ids
    assert len(output.response_mask) == len(output.response_ids) == len(output.response_logprobs)

    # The mask covers exactly what the model generated, in order, with its log-probs.
    spans, current = [], []
    for token, carries_loss in zip(output.response_ids, output.response_mask, strict=True):
        if carries_loss:
            current.append(token)
        elif current:
            spans.append(current)
            current = []
    spans.append(current)
    assert spans == server.generated
    expected = [-(turn + 1) - k / 100 for turn, span in enumerate(server.generated) for k in range(len(span))]
    observed = [value for value, kept in zip(output.response_logprobs, output.response_mask, strict=True) if kept]
    assert observed == pytest.approx(expected)
    assert {value for value, kept in zip(output.response_logprobs, output.response_mask, strict=True) if not kept} == {
        0.0
    }

    # Each request was the stream so far, and the whole conversation rendered at once gives the same ids.
    for request, generated in zip(server.requests, server.generated, strict=True):
        assert ids[: len(request["prompt_ids"])] == request["prompt_ids"]
        assert ids[len(request["prompt_ids"]) :][: len(generated)] == generated
    reports = [arguments[0] for name, arguments, _ in manager.calls if name == "report"]
    assert len(reports) == 1
    turns = reports[0].request.turns
    assert [turn.response for turn in turns] == [MOVE_TURN, "no action at all", MOVE_TURN]
    rendered = tokenizer.apply_chat_template(
        [
            *initial_messages(row(0)["raw_prompt"], turns[0].observation, GUIDE.text),
            {"role": "assistant", "content": TOOL_TURN},
            {"role": "tool", "content": ANSWER.text},
            {"role": "assistant", "content": MOVE_TURN},
            {"role": "user", "content": f"Observation:\n{turns[1].observation}"},
            {"role": "assistant", "content": "no action at all"},
            {"role": "user", "content": f"Observation:\n{turns[2].observation}"},
            {"role": "assistant", "content": MOVE_TURN},
        ],
        tools=[SEARCH_AND_ASK_SCHEMA],
        return_dict=False,
    )
    assert ids == rendered[: len(ids)]
    assert tokenizer.decode(rendered[len(ids) :]) == "\n"  # what the template puts after the last turn


async def test_a_reproducible_run_gives_every_turn_a_seed_of_its_own(make_loop, tokenizer):
    """With verl's, which is one for all requests, the rollouts of a prompt would be copies of one another."""

    async def seeds(session: int, **rollout: Any) -> list[int | None]:
        server = ScriptedServer(tokenizer, [MOVE_TURN] * 4)
        await play(make_loop(server, ScriptedManager(GUIDE), **rollout), **row(session))
        return [request.get("seed") for request in server.requests]

    reproducible = {"full_determinism": True, "seed": 5}
    first, again, other = [await seeds(session, **reproducible) for session in (2, 2, 3)]
    assert first == again and len(first) > 1 and len({*first, *other}) == len(first) + len(other)
    assert not {*first} & {*await seeds(2, full_determinism=True, seed=6)}
    assert {*await seeds(2)} == {None}


async def test_a_guided_episode_reports_what_it_used(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, MOVE_TURN, MOVE_TURN])
    manager = ScriptedManager(GUIDE, ANSWER)
    output = await play(make_loop(server, manager), **row(1))
    assert [name for name, _, _ in manager.calls] == ["guide", "search_and_ask", "report"]
    assert manager.calls[0][2] == {"prompt": "u", "read_only": False}
    report = manager.calls[-1][1][0]
    assert report.guided
    assert report.prompt == "u"
    assert report.record_ids == ("record-1", "record-2")
    assert report.request.experience_ids == ("entry-1",)
    assert report.request.id == "u_1"
    details = output.extra_fields["reward_extra_info"]
    assert details["guided"] == details["slot_guided"] == details["tool_calls"] == 1.0
    assert details["actions"] == len(report.request.turns) and details["task_number"] > 0
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (
        3,
        3 + len(server.generated) - 1,
    )


@pytest.mark.parametrize(
    ("entry", "read", "records"),
    [
        ("entry-2", {"entry-1": GUIDE.text, "entry-2": "What it said."}, ("record-1", "record-2", "record-3")),
        ("entry-1", {"entry-1": GUIDE.text}, ("record-1", "record-2", "record-3")),  # the guide answered
        (None, {"entry-1": GUIDE.text}, ("record-1", "record-2", "record-3")),
    ],
)
async def test_entries_that_answers_rested_on_are_reported_once_and_after_the_guide(
    make_loop, tokenizer, entry, read, records
):
    answer = replace(ANSWER, experience_id=entry, experience_text="What it said.", entry_record_id="record-3")
    server = ScriptedServer(tokenizer, [TOOL_TURN, TOOL_TURN, MOVE_TURN, MOVE_TURN, MOVE_TURN])
    manager = ScriptedManager(GUIDE, answer)
    loop = make_loop(server, manager)
    change_settings(loop, "search_and_ask", max_calls=2)
    await play(loop, **row(0))
    report = manager.calls[-1][1][0]
    request = report.request
    assert dict(zip(request.experience_ids, request.experience_texts, strict=True)) == read
    assert request.experience_ids[0] == "entry-1" and report.record_ids == records


async def test_the_extractor_gets_rules_questions_and_the_final_observation(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [MOVE_TURN, TOOL_TURN, MOVE_TURN, MOVE_TURN])
    manager = ScriptedManager(GUIDE, ANSWER)
    columns = row(0)
    await play(make_loop(server, manager), **columns)
    request = manager.calls[-1][1][0].request

    (system,) = [message["content"] for message in columns["raw_prompt"] if message["role"] == "system"]
    assert request.instructions == system and "move" in system
    asked = [[(question.query, question.answer) for question in turn.questions] for turn in request.turns]
    assert len(asked) == 3 and asked[0] == asked[2] == [] and [answer for _, answer in asked[1]] == [ANSWER.text]
    # The last action's result, which no further turn shows: the environment is played again to see it.
    environment = env_adapters.make("minihack", variant="room-ultimate", max_turns=3)
    environment.reset(seed=columns["extra_info"]["seed"])
    seen = [environment.step(turn.response)[0] for turn in request.turns]
    environment.close()
    assert [turn.observation for turn in request.turns[1:]] == seen[:2]
    assert request.final_observation == seen[2]


async def test_the_free_half_sees_neither_entry_nor_tool(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, MOVE_TURN])
    manager = ScriptedManager(GUIDE, ANSWER)
    output = await play(make_loop(server, manager), **row(2))
    assert [name for name, _, _ in manager.calls] == ["report"]
    text = tokenizer.decode(output.prompt_ids)
    assert "<experience>" not in text
    assert "search_and_ask" not in text
    # A tool call of a free rollout is nothing but an invalid action.
    assert output.extra_fields["reward_extra_info"]["tool_calls"] == 0.0
    assert output.extra_fields["reward_extra_info"]["invalid_actions"] == 1.0


async def test_a_guided_slot_that_got_nothing_is_trained_as_free(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
    manager = ScriptedManager(Guide("nothing"))
    output = await play(make_loop(server, manager), **row(0))
    details = output.extra_fields["reward_extra_info"]
    assert (details["slot_guided"], details["guided"]) == (1.0, 0.0)
    assert not manager.calls[-1][1][0].guided


async def test_an_invalid_action_costs_reward_in_training_only(make_loop, tokenizer):
    for evaluation, expected in ((False, -0.1), (True, 0.0)):
        loop = make_loop(ScriptedServer(tokenizer, ["left", *[MOVE_TURN] * 3]), ScriptedManager(GUIDE))
        loop._settings = loop._settings.model_copy(update={"invalid_action_penalty": 0.1})
        output = await play(loop, **row(3, evaluation=evaluation))
        assert output.extra_fields["reward_extra_info"]["invalid_actions"] == 1.0
        assert output.reward_score == pytest.approx(expected)


@pytest.mark.parametrize("failure", [RayActorError(), TimeoutError()])
async def test_a_dead_manager_costs_the_guide_and_nothing_else(make_loop, tokenizer, failure):
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
    output = await play(make_loop(server, ScriptedManager(failure)), **row(0))
    assert output.extra_fields["reward_extra_info"]["degraded"] == 1.0
    assert output.extra_fields["reward_extra_info"]["guided"] == 0.0


@pytest.mark.parametrize(("answer", "unreported"), [(True, 0.0), (RayActorError(), 1.0), (TimeoutError(), 1.0)])
async def test_an_episode_that_the_manager_did_not_take_is_counted(make_loop, tokenizer, answer, unreported):
    manager = ScriptedManager(GUIDE)
    manager.results["report"] = answer
    output = await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 3), manager), **row(0))
    assert output.extra_fields["reward_extra_info"]["unreported"] == unreported


async def test_evaluation_reads_only_and_reports_nothing(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, MOVE_TURN, MOVE_TURN])
    manager = ScriptedManager(GUIDE, ANSWER)
    loop = make_loop(server, manager)
    # Two rollouts per evaluated prompt: the first with experience, the second without; warm-up does not matter.
    await play(loop, **row(0, evaluation=True, global_steps=0))
    assert [(name, kwargs["read_only"]) for name, _, kwargs in manager.calls] == [
        ("guide", True),
        ("search_and_ask", True),
    ]
    manager.calls.clear()
    server.turns, server.requests = [MOVE_TURN] * 3, []
    await play(loop, **row(1, evaluation=True, global_steps=0))
    assert manager.calls == []


async def test_a_failing_environment_costs_this_rollout_only(make_loop, tokenizer):
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
    loop = make_loop(server, ScriptedManager(GUIDE))
    broken = row(2)
    broken["extra_info"] = broken["extra_info"] | {"environment_options": json.dumps({"variant": "no-such-room"})}
    failed, played = await asyncio.gather(play(loop, **broken), play(loop, **row(3)))
    assert failed == []
    assert played.response_ids


async def test_an_environment_that_dies_costs_its_own_rollout(make_loop, tokenizer):
    loops = [
        make_loop(ScriptedServer(tokenizer, [call("dig"), call(last)] + [call("dig")] * 9), ScriptedManager(GUIDE))
        for last in ("die", "dig")
    ]
    lost, kept = await asyncio.gather(*(play(loop, **unfinished(2)) for loop in loops))
    assert lost == [] and kept.reward_score == 0.5


async def test_an_episode_says_where_its_seconds_and_tokens_went(make_loop, tokenizer):
    took = {}

    class SlowManager(ScriptedManager):
        def __getattr__(self, name):
            slow = {"guide": 0.2, "search_and_ask": 0.3, "report": 0.4}[name]
            answer = super().__getattr__(name).remote

            async def call(*args, **kwargs):
                started = time.perf_counter()
                await asyncio.sleep(slow)
                result = await answer(*args, **kwargs)
                took[name] = time.perf_counter() - started
                return result

            return SimpleNamespace(remote=call)

    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, MOVE_TURN, MOVE_TURN])
    loop, started = make_loop(server, SlowManager(GUIDE, ANSWER)), time.perf_counter()
    output = await play(loop, **row(0))
    played = time.perf_counter() - started
    details = output.extra_fields["reward_extra_info"]
    measured = [details["seconds_guide"], details["seconds_ask"], details["seconds_report"]]
    assert all(map(ge, measured, [took["guide"], took["search_and_ask"], took["report"]])) and sum(measured) <= played
    assert details["seconds_environment"] > 0
    assert details["tokens_prompt"] == len(output.prompt_ids)
    assert details["tokens_generated"] == sum(map(len, server.generated))
    texts = (GUIDE.text, ANSWER.text)
    assert details["tokens_experience"] == sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)

    free = await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 3), SlowManager(GUIDE)), **row(3))
    details = free.extra_fields["reward_extra_info"]
    assert details["seconds_guide"] == details["seconds_ask"] == details["tokens_experience"] == 0
    assert details["seconds_report"] >= 0.4


async def test_a_running_episode_can_be_seen_with_the_part_that_it_is_in(make_loop, tokenizer):
    class SeenServer(ScriptedServer):
        async def generate(self, *arguments, **options):
            seen.append([work.innermost for work in under_way()])
            return await super().generate(*arguments, **options)

    class SeenManager(ScriptedManager):
        def __getattr__(self, name: str):
            seen.append([name, *(work.innermost for work in under_way())])
            return super().__getattr__(name)

    seen: list[list[str]] = []
    loop = make_loop(SeenServer(tokenizer, [TOOL_TURN, MOVE_TURN]), SeenManager(GUIDE, ANSWER))
    await play(loop, **row(0, max_turns=1))
    assert seen == [
        ["guide", "guide"],
        ["generate"],
        ["search_and_ask", "ask"],
        ["generate"],
        ["report", "report"],
    ]
    assert under_way() == []


def test_an_interpolation_of_the_config_is_parsed_once_per_worker(make_loop: Any, tokenizer: Any) -> None:
    """And not at every access, which took a third of an episode's own time in the agent loop."""
    length = "${actor_rollout_ref.rollout.response_length}"
    loop = make_loop(ScriptedServer(tokenizer, []), ScriptedManager(GUIDE), prompt_length=length)
    assert OmegaConf.is_interpolation(loop.config.actor_rollout_ref.rollout, "prompt_length")
    assert not OmegaConf.is_interpolation(loop.rollout_config, "prompt_length")
    assert loop.rollout_config.prompt_length == loop.config.actor_rollout_ref.rollout.prompt_length == 2048
    # verl makes a loop for every episode, from the config object of its worker.
    surroundings: dict[str, Any] = {"server_manager": None, "processor": None, "dataset_cls": None}
    again = type(loop)(
        trainer_config=DictConfigWrap(loop.config),
        tokenizer=tokenizer,
        data_config=DictConfigWrap(OmegaConf.create({})),
        hf_model_type="qwen3",
        **surroundings,
    )
    assert again.rollout_config is loop.rollout_config
