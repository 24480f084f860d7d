"""Traces of scripted episodes, as verl's own back-ends get them."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scripted import ANSWER, GUIDE, MOVE_TURN, TOOL_TURN, ScriptedManager, ScriptedServer, play, row
from verl.utils.rollout_trace import RolloutTraceConfig, rollout_trace_attr, rollout_trace_op
from verl.workers.rollout.llm_server import LLMServerClient

from verl_comprl.rollout.traces import Traces

TURNS = [TOOL_TURN, MOVE_TURN, "no action at all", MOVE_TURN]


class TracedServer(ScriptedServer):
    """A server whose requests are traced, as those of verl's client are."""

    generate = rollout_trace_op(ScriptedServer.generate)


@pytest.fixture(autouse=True)
def forgotten() -> Any:
    RolloutTraceConfig.reset()
    yield
    RolloutTraceConfig.reset()


@pytest.fixture
def trackio(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """A stand-in for the package trackio; returns what is logged to it."""
    logged: list[dict[str, Any]] = []
    package: Any = ModuleType("trackio")
    package.context_vars = SimpleNamespace(current_run=SimpleNamespace(get=lambda: None))
    package.init = lambda **_: None
    package.Trace = lambda **fields: fields
    package.log = lambda traces, step: logged.extend({"name": name, **trace} for name, trace in traces.items())
    monkeypatch.setitem(sys.modules, "trackio", package)
    return logged


async def played_by_worker(loop: Any, **columns: Any) -> Any:
    """Play as verl's V1 worker does, which switches tracing off."""
    with rollout_trace_attr(step=5, sample_index=0, rollout_n=0, trace=False):
        return await play(loop, **columns)


def test_requests_of_verls_client_are_traced() -> None:
    assert LLMServerClient.generate.__wrapped__  # by rollout_trace_op


async def test_every_turn_and_question_of_an_episode_is_traced(
    make_loop: Any, tokenizer: Any, trackio: list[dict[str, Any]]
) -> None:
    RolloutTraceConfig.init("project", "experiment", "trackio", token2text=True)
    server = TracedServer(tokenizer, TURNS)
    await played_by_worker(make_loop(server, ScriptedManager(GUIDE, ANSWER)), **row(1, index=7))
    names = [trace["name"].rsplit(".", 1)[1] for trace in trackio]
    assert names.count("generate") == 4 and names.count("execute") == 1
    for trace in trackio:
        found = {key: trace["metadata"][key] for key in ("step", "sample_index", "rollout_n", "validate")}
        assert found == {"step": 5, "sample_index": 7, "rollout_n": 1, "validate": False}
    replies = [trace["messages"][-1]["content"] for trace in trackio if trace["name"].endswith("generate")]
    for reply, turn in zip(replies, TURNS, strict=True):
        assert turn in reply
    assert GUIDE.text in trackio[0]["metadata"]["output"]["prompt_text"]
    (question,) = (trace for trace in trackio if trace["name"].endswith("execute"))
    assert "Where do I go?" in str(question["metadata"]["inputs"]) and ANSWER.text in str(question["messages"])


async def test_the_record_and_tokens_are_the_same_with_a_trace(
    make_loop: Any, tokenizer: Any, trackio: list[dict[str, Any]]
) -> None:
    async def tokens() -> tuple[list[int], list[int]]:
        loop = make_loop(TracedServer(tokenizer, TURNS), ScriptedManager(GUIDE, ANSWER))
        output = await played_by_worker(loop, **row(1))
        return output.prompt_ids + output.response_ids, output.response_mask

    untraced = await tokens()
    assert trackio == []
    RolloutTraceConfig.init("project", "experiment", "trackio")
    assert await tokens() == untraced and trackio


def traced_prompts(traces: Traces, uids: str, *, step: int = 5, evaluation: bool = False) -> str:
    """Return the prompts, of one letter each, that are traced, in order."""
    from verl.utils import rollout_trace

    found = ""
    for uid in uids:
        columns = {"uid": uid, "session_id": 0, "global_steps": step, "comprl_evaluation": evaluation}
        with rollout_trace_attr(trace=False), traces.episode(columns):
            found += uid if rollout_trace._trace_enabled.get() else ""
    return found


def test_so_many_prompts_of_a_step_are_traced_with_all_their_rollouts(trackio: list[dict[str, Any]]) -> None:
    RolloutTraceConfig.init("project", "experiment", "trackio", max_samples_per_step_per_worker=2)
    traces = Traces()
    assert traced_prompts(traces, "abcabd") == "abab"
    assert traced_prompts(traces, "xyz", evaluation=True) == "xy"
    assert traced_prompts(traces, "mno", step=6) == "mn"
    assert traced_prompts(traces, "ca") == "a"  # a rollout of step 5 that ends late


@pytest.mark.mlflow
async def test_mlflow(
    mlflow: Any, make_loop: Any, tokenizer: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    RolloutTraceConfig.init("project", "experiment", "mlflow")
    loop = make_loop(TracedServer(tokenizer, TURNS), ScriptedManager(GUIDE, ANSWER))
    await played_by_worker(loop, **row(1, index=7))
    mlflow.flush_trace_async_logging()
    (trace,) = mlflow.search_traces(return_type="list")
    assert {name: trace.info.tags[name] for name in ("step", "sample_index", "rollout_n")} == {
        "step": "5",
        "sample_index": "7",
        "rollout_n": "1",
    }
    names = [span.name.rsplit(".", 1)[-1] for span in trace.data.spans]
    assert names[0] == "agent_loop" and names.count("generate") == 4 and names.count("execute") == 1
