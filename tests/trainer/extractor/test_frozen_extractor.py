"""An endpoint in the extractor's place: launcher, the manager's Ray actor and a real HTTP server, without any model."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from chat_endpoint import ChatEndpoint, refusal
from omegaconf import DictConfig
from running import ROOT, undocumented
from teaching import LESSON, teach

from verl_comprl.config.composing import compose
from verl_comprl.experience.schema import DistillationRequest
from verl_comprl.extractor.endpoint import EndpointError
from verl_comprl.manager.messages import EpisodeReport
from verl_comprl.trainer.engines import Engines
from verl_comprl.trainer.experience_runtime import ExperienceRuntime

pytestmark = pytest.mark.run
KEY = "COMPRL_TEST_KEY"
Start = Callable[..., ExperienceRuntime]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture
def teacher() -> Iterator[ChatEndpoint]:
    teacher = ChatEndpoint(teach)
    teacher.server.start()
    yield teacher
    teacher.server.stop()


@pytest.fixture
def config(teacher: ChatEndpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DictConfig:
    # After Ray has started: its workers do not have the key.
    monkeypatch.setenv(KEY, "secret")
    settings = {
        "trainer.default_local_dir": tmp_path,
        "actor_rollout_ref.model.path": ROOT / "recipes/miniature/models/plain/actor",
        "extractor.model.path": "null",
        "comprl.extractor.backend": "endpoint",
        "comprl.extractor.endpoint.url": teacher.url,
        "comprl.extractor.endpoint.model": "teacher",
        "comprl.extractor.endpoint.key_variable": KEY,
        "comprl.queue.backoff_seconds": 0.01,
    }
    return compose(None, None, ["arm=static_online", *(f"{key}={value}" for key, value in settings.items())])


@pytest.fixture
def start(cluster: None, config: DictConfig) -> Iterator[Start]:
    """Start a runtime as the trainer does; the test has it to itself."""
    started: list[ExperienceRuntime] = []

    def begin(folder: Path | None = None) -> ExperienceRuntime:
        runtime = ExperienceRuntime(config)
        started.append(runtime)
        runtime.open(folder, is_own=folder is not None)
        runtime.start(Engines())
        no_actor: Any = None
        runtime.connect(folder, no_actor)
        runtime.begin(agent_loops=[])
        return runtime

    yield begin
    for runtime in started:
        runtime.stop(5.0)
        runtime.close(30.0)


def report(runtime: ExperienceRuntime, request: DistillationRequest) -> None:
    ray.get(runtime.manager.report.remote(EpisodeReport(request, guided=False)))


def test_episodes_are_distilled_and_questions_answered(
    start: Start, teacher: ChatEndpoint, make_request: Callable[..., DistillationRequest], tmp_path: Path
) -> None:
    runtime = start()
    teacher.failures = [refusal(429), refusal(503)]
    for number in range(3):
        report(runtime, make_request(f"prompt_{number}"))
    metrics = runtime.finish(lambda: False)
    assert metrics["comprl/distillations/written"] == metrics["comprl/bank/size"] == 3
    assert metrics["comprl/queue/retried"] == 0, "a refused request is retried without failing the call"
    # The check is no call.
    assert (metrics["comprl/extractor/tokens/prompt"], metrics["comprl/extractor/tokens/response"]) == (33, 15)
    assert "comprl/extractor/updates" not in metrics and metrics["comprl/buffer/records"] == 0
    assert undocumented(metrics) == []
    answer: Any = ray.get(runtime.manager.search_and_ask.remote("where to?", "fetch", "room"))
    assert (answer.status, answer.text) == ("answered", LESSON)
    assert teacher.keys == {"Bearer secret"}

    saved = tmp_path / "global_step_2"
    runtime.save(saved, 2)
    assert {path.name for path in saved.iterdir()} == {"comprl", "comprl.json"}
    assert json.loads((saved / "comprl.json").read_text()) == {"extractor_weight_version": 0, "step": 2}
    assert len(runtime.checkpoint_parts) > 1 and all((saved / part).exists() for part in runtime.checkpoint_parts)
    assert not any(b"secret" in path.read_bytes() for path in saved.rglob("*") if path.is_file())


def test_a_resumed_run_continues_the_counts(
    start: Start, config: DictConfig, make_request: Callable[..., DistillationRequest], tmp_path: Path
) -> None:
    runtime = start()
    report(runtime, make_request("prompt_0"))
    runtime.finish(lambda: False)
    runtime.save(tmp_path / "global_step_1", 1)
    config.trainer.default_local_dir = str(tmp_path / "resumed")  # with a bank and a queue of its own
    (tmp_path / "resumed").mkdir()
    resumed = start(tmp_path / "global_step_1")
    report(resumed, make_request("prompt_1"))
    metrics = resumed.finish(lambda: False)
    assert metrics["comprl/bank/size"] == 2 and metrics["comprl/extractor/tokens/prompt"] == 22


def test_an_endpoint_that_refuses_the_first_request_ends_the_start(start: Start, teacher: ChatEndpoint) -> None:
    teacher.failures = [refusal(401)]
    with pytest.raises(EndpointError, match=r"comprl\.extractor\.endpoint\.url=.* with model=teacher: .*401"):
        start()


def test_episodes_wait_for_an_endpoint_that_is_down(
    start: Start, config: DictConfig, teacher: ChatEndpoint, make_request: Callable[..., DistillationRequest]
) -> None:
    config.comprl.extractor.endpoint.retries = 0
    config.comprl.queue.max_attempts = 2
    runtime = start()
    teacher.failures = [refusal(503)]
    report(runtime, make_request("prompt_0"))
    metrics = runtime.finish(lambda: False)
    assert metrics["comprl/distillations/written"] == 1
    assert metrics["comprl/extractor/away_seconds"] > 4.9  # a pause of 5 s, by two clocks
    teacher.server.stop()
    report(runtime, make_request("prompt_1"))
    answer: Any = ray.get(runtime.manager.search_and_ask.remote("where to?", "fetch", "room"))
    assert answer.status == "unavailable"
    metrics = runtime.finish(lambda: True)
    assert (metrics["comprl/queue/depth"], metrics["comprl/extractor/away"]) == (1, 1)
    teacher.server.start()
    metrics = runtime.finish(lambda: False)
    assert metrics["comprl/distillations/written"] == 2
    assert metrics["comprl/queue/retried"] == 0 == metrics["comprl/queue/dead"]
