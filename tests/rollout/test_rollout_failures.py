"""Failed rollouts: each boundary's failure in a real agent loop, and what is sent of it."""

import asyncio
import json
import math
from typing import Any

import pytest
from own_environments import Raising, RaisingInItsProcess, Rewarding
from ray.exceptions import RayActorError
from scripted import GUIDE, MOVE_TURN, ScriptedManager, ScriptedQueue, ScriptedServer, change_settings, play, row

from env_adapters import TextEnvironment
from env_adapters.host import EnvironmentFailure
from verl_comprl.errors import Boundary, failing_at
from verl_comprl.rollout import agent_loop
from verl_comprl.rollout.failures import (
    MAX_KIND_CHARS,
    MAX_KINDS,
    MAX_TEXT_CHARS,
    MAX_TRACEBACK_CHARS,
    FailedRollout,
    FailureReporter,
    describe,
)
from verl_comprl.rollout.guidance import Guidance

CONNECT = Guidance.connect
"""Before a fixture replaces it."""


def raising(method: str, environment: type[TextEnvironment] = Raising, **changes: Any) -> dict[str, Any]:
    columns = row(2, **changes)
    name = f"{environment.__module__}:{environment.__name__}"
    extra = {"environment": name, "environment_options": json.dumps({"method": method})}
    return columns | {"extra_info": columns["extra_info"] | extra}


@pytest.mark.parametrize("environment", [Raising, RaisingInItsProcess])
@pytest.mark.parametrize("method", ["make", "reset", "step", "truncate"])
async def test_an_environment_that_raises(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, method: str, environment: type[TextEnvironment]
) -> None:
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE), response_length=300)
    columns = raising(method, environment)
    assert await play(loop, **columns) == []
    (tag,) = queue.sent.values()
    trace = tag.pop("traceback")
    assert tag == {
        "id": "u_2",
        "step": 5,
        "task": columns["data_source"],
        "environment": columns["extra_info"]["environment"],
        "boundary": "environment",
        "type": "LookupError",
        "text": f"LookupError: no {method}",
        "evaluation": False,
    }
    # Of the environment itself, whichever process it is in.
    assert "in _raise" in trace and 'raise LookupError(f"no {method}")' in trace


@pytest.mark.parametrize(
    ("extra", "type_", "words"),
    [
        ({"environment": "no-such-family"}, "ValueError", "unknown environment 'no-such-family'"),
        ({"environment": "no_such_module:Environment"}, "ImportError", "no_such_module"),
    ],
)
async def test_an_environment_that_cannot_be_made(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, extra: dict[str, str], type_: str, words: str
) -> None:
    columns = row(2)
    await play(
        make_loop(ScriptedServer(tokenizer, []), ScriptedManager(GUIDE)),
        **columns | {"extra_info": columns["extra_info"] | extra},
    )
    tag = queue.sent["u_2"]
    assert (tag["boundary"], tag["type"]) == ("environment", type_) and words in tag["text"]


@pytest.mark.parametrize(("reward", "what"), [(1e39, "reward is 1e+39"), (2e38, "episode's rewards is 4e+38")])
async def test_rewards_that_a_float32_cannot_hold_fail_before_anything_is_reported(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, reward: float, what: str
) -> None:
    """In verl they would fail after the report, when the bank has been credited and no failure is counted."""
    manager = ScriptedManager(GUIDE)
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), manager, response_length=300)
    columns = row(0)
    extra = {"environment": f"{Rewarding.__module__}:Rewarding", "environment_options": json.dumps({"reward": reward})}
    assert await play(loop, **columns | {"extra_info": columns["extra_info"] | extra}) == []
    tag = queue.sent["u_0"]
    assert (tag["boundary"], tag["type"]) == ("environment", "ValueError") and what in tag["text"]
    assert "report" not in [name for name, *_ in manager.calls]


async def test_an_episode_that_takes_too_long(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 9)

    async def never(**_: Any) -> None:
        await asyncio.sleep(60)

    server.generate = never  # pyright: ignore[reportAttributeAccessIssue]
    loop = make_loop(server, ScriptedManager(GUIDE))
    change_settings(loop, "environments", episode_timeout=0.5)
    assert await play(loop, **raising("nothing")) == []
    tag = queue.sent["u_2"]
    assert (tag["boundary"], tag["type"]) == ("environment", "TimeoutError")
    assert tag["text"] == "the episode was not over within 0.5 s"


@pytest.mark.parametrize("failure", [RayActorError(), RuntimeError("no servers available")])
async def test_a_server_that_fails(make_loop: Any, tokenizer: Any, queue: ScriptedQueue, failure: Exception) -> None:
    server = ScriptedServer(tokenizer, [])

    async def generate(**_: Any) -> None:
        raise failure

    server.generate = generate  # pyright: ignore[reportAttributeAccessIssue]
    assert await play(make_loop(server, ScriptedManager(GUIDE)), **row(2, evaluation=True)) == []
    tag = queue.sent["u_2"]
    assert (tag["boundary"], tag["type"], tag["evaluation"]) == ("server", type(failure).__name__, True)
    assert "conversation.py" in tag["traceback"]


@pytest.mark.parametrize("log_prob", [math.nan, -math.inf])
async def test_a_server_whose_log_probs_are_not_finite(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, log_prob: float
) -> None:
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
    generate = server.generate

    async def spoil(*arguments: Any, **keywords: Any) -> Any:
        output: Any = await generate(*arguments, **keywords)
        if len(server.requests) == 2:
            output.log_probs = [log_prob, *output.log_probs[1:]]
        return output

    server.generate = spoil
    assert await play(make_loop(server, ScriptedManager(GUIDE)), **row(2)) == []
    tag = queue.sent["u_2"]
    assert (tag["boundary"], tag["type"]) == ("server", "ValueError") and "not finite" in tag["text"]


async def test_no_manager_in_this_job(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE))

    def no_actor(name: str) -> None:
        raise ValueError(f"Failed to look up actor with name {name!r}")

    monkeypatch.setattr(agent_loop, "guidance", CONNECT)
    monkeypatch.setattr("verl_comprl.rollout.guidance.ray.get_actor", no_actor)
    context = type("Context", (), {"get_job_id": staticmethod(lambda: "01000000")})
    monkeypatch.setattr("verl_comprl.rollout.guidance.ray.get_runtime_context", context)
    assert await play(loop, **row(0)) == []
    tag = queue.sent["u_0"]
    assert (tag["boundary"], tag["type"]) == ("manager", "ValueError")
    assert "comprl_experience_manager_01000000" in tag["text"]


@pytest.mark.parametrize(
    ("changes", "type_"),
    [
        ({"extra_info": None}, "TypeError"),
        ({"raw_prompt": []}, "ValueError"),
        ({"extra_info": {"environment_options": "{", "environment": "guess"}}, "JSONDecodeError"),
    ],
)
async def test_a_row_that_cannot_be_played(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, changes: dict[str, Any], type_: str
) -> None:
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN]), ScriptedManager(GUIDE))
    assert await play(loop, **row(2) | changes) == []
    tag = queue.sent["u_2"]
    assert (tag["boundary"], tag["type"]) == ("rollout", type_)


async def test_a_rollout_that_does_not_fail_sends_nothing(make_loop: Any, tokenizer: Any, queue: ScriptedQueue) -> None:
    server = ScriptedServer(tokenizer, [MOVE_TURN] * 3)
    assert await play(make_loop(server, ScriptedManager(RayActorError())), **row(0)) != []
    assert queue.sent == {}


async def test_a_worker_sends_one_traceback_of_each_kind() -> None:
    queue = ScriptedQueue()
    reporter = FailureReporter(queue.put)
    for session, error in enumerate([KeyError("a"), KeyError("b"), OSError("c")]):
        await reporter.report(row(session), error)
    assert [bool(queue.sent[f"u_{session}"]["traceback"]) for session in range(3)] == [True, False, True]
    assert [queue.sent[f"u_{session}"]["text"] for session in range(3)] == ["'a'", "'b'", "c"]


async def test_an_environment_that_names_ever_more_kinds_gets_so_many_tracebacks() -> None:
    queue = ScriptedQueue()
    reporter = FailureReporter(queue.put)
    for session in range(MAX_KINDS + 10):
        await reporter.report(row(session), EnvironmentFailure("no", kind=f"{session}" + "k" * 10_000))
    tags = list(queue.sent.values())
    assert sum(bool(tag["traceback"]) for tag in tags) == MAX_KINDS
    assert max(len(tag["type"]) for tag in tags) < MAX_KIND_CHARS + 10


async def test_a_record_that_cannot_be_sent_fails_nothing_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    queue = ScriptedQueue()
    reporter, queue.failure = FailureReporter(queue.put), RuntimeError("queue is gone")
    await reporter.report(row(0), KeyError("door"))
    assert "it failed with KeyError('door')" in caplog.text and "queue is gone" in caplog.text
    queue.failure = None
    await reporter.report(row(1), KeyError("door"))
    assert queue.sent["u_1"]["traceback"], "the first one that arrives"


def test_a_secret_of_the_worker_s_node_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a text is shortened: a half of it would not be found any more."""
    monkeypatch.setenv("NODE_API_KEY", "sk-of-this-node" * 10)
    failure = describe(row(0), ValueError("x" * (MAX_TEXT_CHARS // 2 - 20) + "sk-of-this-node" * 10 + "y" * 1000))
    assert "sk-of-this-node" not in failure.text + failure.traceback and "x***y" in failure.text


def test_a_record_is_bounded_and_can_be_encoded() -> None:
    with pytest.raises(Exception) as caught, failing_at(Boundary.ENVIRONMENT):
        raise ValueError("first" + "x" * 100_000 + "last\ud800")
    failure = describe(row(0), caught.value)  # pyright: ignore[reportArgumentType]
    assert isinstance(failure, FailedRollout)
    assert len(failure.text) < MAX_TEXT_CHARS + 10 and len(failure.traceback) < MAX_TRACEBACK_CHARS + 10
    assert failure.text.startswith("first") and failure.text.endswith("last\\ud800")
    assert "in test_a_record_is_bounded" in failure.traceback
    json.dumps(failure.text).encode("utf-8")


@pytest.mark.parametrize("where", ["observation_message", "_output"])
async def test_a_tokenizer_that_panics(
    make_loop: Any, tokenizer: Any, queue: ScriptedQueue, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It raises a ``BaseException``, here while the episode is played and after it."""

    class Panic(BaseException):
        pass

    def panic(*_: Any, **__: Any) -> None:
        raise Panic("retry-limit-in-match over")

    monkeypatch.setattr(agent_loop, where, panic)
    loop = make_loop(ScriptedServer(tokenizer, [MOVE_TURN] * 9), ScriptedManager(GUIDE))
    assert await play(loop, **row(2)) == []
    tag, record = queue.sent["u_2"], queue.episodes["u_2"]
    assert (tag["boundary"], tag["type"]) == ("rollout", "LibraryPanic")
    assert tag["text"] == "Panic: retry-limit-in-match over" and "in panic" in tag["traceback"]
    assert record["error"] == {key: tag[key] for key in ("boundary", "type", "text")}
