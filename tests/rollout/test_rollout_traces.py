"""Traces of scripted episodes, as verl's own back-ends get them."""

import sys
from contextvars import Context, ContextVar, copy_context
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from scripted import ANSWER, GUIDE, MOVE_TURN, TOOL_TURN, ScriptedManager, ScriptedServer, play, row
from trace_server import trace_server
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
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What is logged to a stand-in for the package trackio, whose run belongs to a context, too."""
    logged: list[dict[str, Any]] = []
    current_run: ContextVar[Any] = ContextVar("current_run", default=None)
    run = SimpleNamespace(
        log=lambda traces, step: logged.extend({"name": name, **trace} for name, trace in traces.items())
    )
    package: Any = ModuleType("trackio")
    package.context_vars = SimpleNamespace(current_run=current_run)
    package.init = lambda **_: current_run.set(run)
    package.Trace = lambda **fields: fields
    package.log = lambda traces, step: current_run.get().log(traces, step)
    monkeypatch.setitem(sys.modules, "trackio", package)
    return logged


def start(backend: str, **settings: Any) -> Context:
    """Start a back-end as verl's worker does in its constructor, which in Ray has a context of its own; returns it."""
    context = copy_context()
    context.run(RolloutTraceConfig.init, "project", "experiment", backend, **settings)
    return context


async def played_by_worker(loop: Any, **columns: Any) -> Any:
    """Play as verl's V1 worker does, which switches tracing off."""
    with rollout_trace_attr(step=5, sample_index=0, rollout_n=0, trace=False):
        return await play(loop, **columns)


def test_requests_of_verls_client_are_traced() -> None:
    assert LLMServerClient.generate.__wrapped__  # by rollout_trace_op


async def test_every_turn_and_question_of_an_episode_is_traced(
    make_loop: Any, tokenizer: Any, logged: list[dict[str, Any]]
) -> None:
    start("trackio", token2text=True)
    server = TracedServer(tokenizer, TURNS)
    await played_by_worker(make_loop(server, ScriptedManager(GUIDE, ANSWER)), **row(1, index=7))
    names = [trace["name"].rsplit(".", 1)[1] for trace in logged]
    assert names.count("generate") == 4 and names.count("execute") == 1
    for trace in logged:
        found = {key: trace["metadata"][key] for key in ("step", "sample_index", "rollout_n", "validate")}
        assert found == {"step": 5, "sample_index": 7, "rollout_n": 1, "validate": False}
    replies = [trace["messages"][-1]["content"] for trace in logged if trace["name"].endswith("generate")]
    for reply, turn in zip(replies, TURNS, strict=True):
        assert turn in reply
    assert GUIDE.text in logged[0]["metadata"]["output"]["prompt_text"]
    (question,) = (trace for trace in logged if trace["name"].endswith("execute"))
    assert "Where do I go?" in str(question["metadata"]["inputs"]) and ANSWER.text in str(question["messages"])


async def test_the_record_and_tokens_are_the_same_with_a_trace(
    make_loop: Any, tokenizer: Any, logged: list[dict[str, Any]]
) -> None:
    async def tokens() -> tuple[list[int], list[int]]:
        loop = make_loop(TracedServer(tokenizer, TURNS), ScriptedManager(GUIDE, ANSWER))
        output = await played_by_worker(loop, **row(1))
        return output.prompt_ids + output.response_ids, output.response_mask

    untraced = await tokens()
    assert logged == []
    start("trackio")
    assert await tokens() == untraced and logged


def traced_prompts(traces: Traces, uids: str, *, step: int = 5, evaluation: bool = False) -> str:
    """Return the prompts, of one letter each, that are traced, in order."""
    from verl.utils import rollout_trace

    found = ""
    for uid in uids:
        columns = {"uid": uid, "session_id": 0, "global_steps": step, "comprl_evaluation": evaluation}
        with rollout_trace_attr(trace=False), traces.episode(columns):
            found += uid if rollout_trace._trace_enabled.get() else ""
    return found


def test_so_many_prompts_of_a_step_are_traced_with_all_their_rollouts(logged: list[dict[str, Any]]) -> None:
    start("trackio", max_samples_per_step_per_worker=2)
    traces = Traces()
    assert traced_prompts(traces, "abcabd") == "abab"
    assert traced_prompts(traces, "xyz", evaluation=True) == "xy"
    assert traced_prompts(traces, "mno", step=6) == "mn"
    assert traced_prompts(traces, "ca") == "a"  # a rollout of step 5 that ends late


@pytest.mark.backend
async def test_mlflow(
    mlflow: Any, make_loop: Any, tokenizer: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    start("mlflow")
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


@pytest.mark.backend
async def test_trackio(
    import_backend: Any, make_loop: Any, tokenizer: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))  # read by the import
    trackio = import_backend("trackio")
    from trackio.sqlite_storage import SQLiteStorage  # pyright: ignore[reportMissingImports]

    context = start("trackio", token2text=True)
    loop = make_loop(TracedServer(tokenizer, TURNS), ScriptedManager(GUIDE, ANSWER))
    await played_by_worker(loop, **row(1, index=7))
    context.run(trackio.finish)  # writes what is left
    traces = SQLiteStorage.get_traces("project", "experiment")
    names = [trace["metadata"]["op"].rsplit(".", 1)[1] for trace in traces]
    assert names.count("generate") == 4 and names.count("execute") == 1
    for trace in traces:
        found = {key: trace["metadata"][key] for key in ("step", "sample_index", "rollout_n", "validate")}
        assert found == {"step": 5, "sample_index": 7, "rollout_n": 1, "validate": False}
    replies = [trace["messages"][-1]["content"] for trace in traces if trace["metadata"]["op"].endswith("generate")]
    assert all(any(turn in reply for reply in replies) for turn in TURNS)


@pytest.mark.backend
async def test_weave(import_backend: Any, make_loop: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")  # read by the import
    weave = import_backend("weave")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WEAVE_USE_SERVER_CACHE", "false")
    monkeypatch.setenv("WEAVE_IMPLICITLY_PATCH_INTEGRATIONS", "false")  # other tests use the same libraries
    with trace_server() as (address, calls):
        monkeypatch.setenv("WANDB_BASE_URL", address)
        monkeypatch.setenv("WF_TRACE_SERVER_URL", address)
        start("weave", token2text=True)
        loop = make_loop(TracedServer(tokenizer, TURNS), ScriptedManager(GUIDE, ANSWER))
        await played_by_worker(loop, **row(1, index=7))
        weave.finish()  # sends what is left
    names = [call["op_name"].rpartition("/")[2].partition(":")[0].rpartition(".")[2] for call in calls]
    assert names.count("generate") == 4 and names.count("execute") == 1
    for call in calls:
        found = {key: call["attributes"][key] for key in ("step", "sample_index", "rollout_n", "validate")}
        assert found == {"step": 5, "sample_index": 7, "rollout_n": 1, "validate": False}
        assert call["parent_id"] is None and call["exception"] is None
    replies = [call["output"]["response_text"] for call, name in zip(calls, names, strict=True) if name == "generate"]
    for reply, turn in zip(replies, TURNS, strict=True):
        assert turn in reply
