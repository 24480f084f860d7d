"""The record of an episode says what a scripted rollout really did."""

import json
from typing import Any

import pytest
import run_folder_page
from run_folder_page import EPISODE, TURN
from scripted import (
    ANSWER,
    GUIDE,
    MOVE_TURN,
    TOOL_TURN,
    ScriptedManager,
    ScriptedQueue,
    ScriptedServer,
    change_settings,
    play,
    row,
)

from env_adapters import make
from verl_comprl.extractor.recorded_episodes import RecordedEpisode
from verl_comprl.manager.messages import Answer, Guide
from verl_comprl.rollout.episode import UNREAD

KEYS = run_folder_page.rows(EPISODE).keys() - {"status", "step"}
"""Those of docs/run_folder.md without what the trainer adds."""


async def test_a_guided_episode_with_a_question(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, "no action at all", MOVE_TURN])
    answer = Answer("answered", "Walk east.", "record-2", "entry-2", "The stairs are in the east.")
    output = await play(make_loop(server, ScriptedManager(GUIDE, answer)), **row(0))
    record = queue.episodes["u_0"]
    assert queue.tags == {"u_0": {"failed": False, "evaluation": False}}
    assert record.keys() == KEYS

    # The same moves in the environment itself.
    extra = row(0)["extra_info"]
    options = json.loads(extra["environment_options"])
    environment = make(extra["environment"], **options)
    observation, info = environment.reset(seed=extra["seed"])
    turns = []
    for text in (MOVE_TURN, "no action at all", MOVE_TURN):
        step = environment.step(text)
        turns.append((observation, text, step[4]["action_valid"], step[1]))
        observation, after = step[0], step[4]
    environment.close()
    recorded = [(turn["observation"], turn["response"], turn["valid"], turn["reward"]) for turn in record["turns"]]
    assert recorded == turns and [valid for *_, valid, _ in turns] == [True, False, True]
    assert record["final_observation"] == observation and record["unfinished"] is None
    assert record["outcome"] == {"success": after["success"], "score": after["score"]}
    assert (record["environment"], record["options"], record["seed"]) == (extra["environment"], options, extra["seed"])
    assert (record["goal"], record["task"]) == (info["goal"], row(0)["data_source"])
    assert (record["prompt"], record["session"], record["submitted"]) == ("u", 0, 5)
    assert (record["kind"], record["error"], record["advantage"], record["reported"]) == ("training", None, None, True)
    assert (record["invalid_actions"], record["tool_calls"], record["cut_turns"]) == (1, 1, 0)

    assert [len(turn["questions"]) for turn in record["turns"]] == [1, 0, 0]
    assert all(turn.keys() == run_folder_page.rows(TURN).keys() for turn in record["turns"])
    assert record["turns"][0]["questions"][0].keys() == run_folder_page.within(TURN, "questions")
    for part in ("guide", "outcome", "seconds", "tokens"):
        assert record[part].keys() == run_folder_page.within(EPISODE, part)
    assert record["turns"][0]["questions"] == [
        {
            "query": "Where do I go?",
            "answer": "Walk east.",
            "status": "answered",
            "entry": "entry-2",
            "entry_text": "The stairs are in the east.",
            "call": "record-2",
        }
    ]
    assert record["slot_guided"] and record["guided"]
    assert record["guide"] == {
        "status": "found",
        "entry": "entry-1",
        "call": "record-1",
        "entry_text": GUIDE.text,
        "text": GUIDE.text,
        "verdict": None,
    }

    # Against what verl trains on: texts, loss and reward.
    assert record["input"] == tokenizer.decode(output.prompt_ids) and GUIDE.text in record["input"]
    assert record["output"] == tokenizer.decode(output.response_ids)
    trained = [record["output"][start:end] for start, end in record["loss_spans"]]
    assert trained == [tokenizer.decode(ids) for ids in server.generated]
    assert record["score"] == output.reward_score
    assert record["tokens"]["generated"] == sum(output.response_mask)
    assert record["tokens"]["prompt"] == len(output.prompt_ids)
    assert record["weight_versions"] == [3, 6]
    assert 0 < record["seconds"]["generate"] <= record["seconds"]["total"]


async def test_a_free_episode_of_an_evaluation(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE))
    await play(loop, **row(1, evaluation=True, reward_model={"ground_truth": "go"}))
    record = queue.episodes["u_1"]
    assert queue.tags["u_1"] == {"failed": False, "evaluation": True}
    assert (record["kind"], record["slot_guided"], record["guided"], record["guide"]) == (
        "evaluation",
        False,
        False,
        None,
    )
    assert record["gts"] == "go" and record["turns"]


@pytest.mark.parametrize(
    ("guide", "expected"),
    [(Guide("nothing"), "nothing"), (Guide("degraded"), "degraded"), (RuntimeError("gone"), "degraded")],
)
async def test_a_guided_slot_that_got_nothing(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, guide: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(guide, Exception):
        from ray.exceptions import RayActorError

        guide = RayActorError()
    await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(guide)), **row(0))
    record = queue.episodes["u_0"]
    assert record["slot_guided"] and not record["guided"]
    assert (record["guide"]["status"], record["guide"]["text"], record["guide"]["entry"]) == (expected, None, None)


async def test_an_answer_that_no_longer_fitted(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    long = Answer("answered", "east " * 3000, "record-2", "entry-2", "text")
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN, TOOL_TURN]), ScriptedManager(GUIDE, long))
    await play(loop, **row(0))
    record = queue.episodes["u_0"]
    (question,) = record["unfinished"]["questions"]
    assert (question["status"], question["answer"], question["entry"]) == ("unread", UNREAD, None)
    assert "response" not in record["unfinished"] and len(record["turns"]) == 1
    assert record["unfinished"]["observation"] != record["turns"][0]["observation"]


async def test_a_question_without_a_query(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    turn = TOOL_TURN.replace('"query": "Where do I go?"', "")
    loop = make_loop(ScriptedServer(tokenizer, [turn] + [MOVE_TURN] * 3), ScriptedManager(GUIDE, ANSWER))
    await play(loop, **row(0))
    (question,) = queue.episodes["u_0"]["turns"][0]["questions"]
    assert (question["query"], question["status"], question["call"]) == ("", "refused", None)


@pytest.mark.parametrize(
    ("verdict", "inserted", "guided"),
    [
        ("<verdict>reject</verdict>", None, False),
        ("<verdict>refine</verdict><experience>shorter</experience>", "shorter", True),
    ],
)
async def test_what_a_critic_made_of_the_entry(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, verdict: str, inserted: str | None, guided: bool
) -> None:
    loop = make_loop(ScriptedServer(tokenizer, [verdict] + [MOVE_TURN] * 9), ScriptedManager(GUIDE))
    change_settings(loop, "actor_critic", enabled=True)
    await play(loop, **row(0))
    record = queue.episodes["u_0"]
    assert record["guided"] == guided
    assert (record["guide"]["text"], record["guide"]["entry_text"]) == (inserted, GUIDE.text)
    assert record["guide"]["verdict"] == verdict[len("<verdict>") :][:6]


async def test_an_episode_that_fails_in_its_second_turn(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    server = ScriptedServer(tokenizer, [MOVE_TURN])  # there is no second answer
    assert await play(make_loop(server, ScriptedManager(GUIDE)), **row(0)) == []
    record, failure = queue.episodes["u_0"], queue.sent["u_0"]
    assert queue.tags["u_0"] == {"failed": True, "evaluation": False}
    assert record["error"] == {key: failure[key] for key in ("boundary", "type", "text")}
    assert record["error"]["type"] == "IndexError"
    assert record["error"].keys() == run_folder_page.within(EPISODE, "error")
    assert [turn["response"] for turn in record["turns"]] == [MOVE_TURN] and record["guide"]["entry"] == "entry-1"
    assert record["output"].startswith(MOVE_TURN) and record["loss_spans"][0][0] == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"extra_info": None},
        {"raw_prompt": []},
        {"extra_info": {"environment_options": "{", "environment": "guess"}},
        {"data_source": None},
    ],
)
async def test_a_broken_row_has_a_record(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, changes: dict[str, Any]
) -> None:
    await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE)), **row(0, **changes))
    record = queue.episodes["u_0"]
    assert record.keys() == KEYS
    if "data_source" not in changes:
        assert record["error"] and record["outcome"] is None and record["turns"] == []


async def test_nothing_is_sent_when_it_is_switched_off(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE))
    change_settings(loop, "record", enabled=False)
    await play(loop, **row(0))
    assert queue.episodes == {}


async def test_a_queue_that_takes_no_records_costs_nothing_else(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.failure = RuntimeError("storage is full")
    for session in (0, 1):
        output = await play(
            make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE)), **row(session)
        )
        assert output.response_ids
    messages = [entry.getMessage() for entry in caplog.records]
    assert messages.count("an episode could not be recorded") == 1


async def test_a_record_gives_the_request_that_the_manager_got(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue
) -> None:
    server = ScriptedServer(tokenizer, [TOOL_TURN, MOVE_TURN, "no action at all", MOVE_TURN])
    manager = ScriptedManager(GUIDE, ANSWER)
    await play(make_loop(server, manager), **row(0))
    ((report,),) = [arguments for name, arguments, _ in manager.calls if name == "report"]
    record = {"step": 5, **queue.episodes["u_0"]}  # the trainer adds the step
    request = RecordedEpisode.model_validate(record).request()
    other = {"id": request.id, "experience_ids": (), "experience_texts": ()}
    assert request == report.request.model_copy(update=other) and request.id.startswith(f"{report.request.id}:")
    assert request.instructions and request.turns[0].questions


async def test_a_tokenizer_that_panics_costs_the_record_only(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Panic(BaseException):
        pass

    def panic(*_: Any) -> None:
        raise Panic

    monkeypatch.setattr("verl_comprl.rollout.recorder.episode_record", panic)
    output = await play(make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE)), **row(0))
    assert output.response_ids and queue.episodes == {} and queue.sent == {}


async def test_a_secret_that_only_this_node_has_leaves_it_neither_in_the_record_nor_in_the_report(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = ScriptedManager(GUIDE)
    loop = make_loop(ScriptedServer(tokenizer, ["I read sk-of-this-node."] * 9), manager)
    monkeypatch.setenv("NODE_API_KEY", "sk-of-this-node")  # as by an environment, when the worker has long begun
    await play(loop, **row(0))
    ((report,),) = [arguments for name, arguments, _ in manager.calls if name == "report"]
    record = queue.episodes["u_0"]
    assert [record["turns"][0]["response"], report.request.turns[0].response] == ["I read ***."] * 2
    assert "sk-of" not in json.dumps(record) + report.request.model_dump_json()
