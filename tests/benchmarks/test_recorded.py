"""A recorded extractor and an arm of the benchmark, in the hands of the run's own code: no engine, no Ray."""

import ast
import inspect
import json
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock, create_autospec

import pytest
from omegaconf import OmegaConf

from benchmarks import interleaved
from benchmarks.interleaved import Arm, Interleaved
from benchmarks.recorded import RecordedExtractor
from verl_comprl.config.composing import compose
from verl_comprl.config.reading import comprl_config
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.prompt_encoder import Prompt
from verl_comprl.manager.actor import _ManagerActor
from verl_comprl.trainer import experience_runtime
from verl_comprl.trainer.checkpoint import contents
from verl_comprl.trainer.engines import Engines
from verl_comprl.trainer.experience_runtime import ExperienceRuntime
from verl_comprl.trainer.extractor import learner
from verl_comprl.trainer.extractor.runtime import ExtractorRuntime, extractor_view

RECIPES = Path(__file__).parents[2] / "recipes"


class Manager:
    """The manager's handle: calls must fit its actor; what was asked is kept, and ``answers`` are returned."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            inspect.signature(getattr(_ManagerActor, name)).bind(self, *arguments)
            self.asked.append((name, arguments))
            return self.answers.get(name)

        return SimpleNamespace(remote=remote)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("run")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("COMPRL_MODELS", "COMPRL_MINIATURE"):
            patch.setenv(name, str(folder))
        overrides = [f"trainer.default_local_dir={folder}", "comprl.extractor.max_failures=7"]
        config = compose(RECIPES, "miniature/plain", overrides)
        OmegaConf.resolve(config)
    return config


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    rows = [{"seconds": 0.0, "token_ids": [number, 2], "log_probs": [-0.5, -0.25]} for number in (7, 8)]
    file = tmp_path / "recording.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def lent(config: Any, recording: Path, monkeypatch: pytest.MonkeyPatch) -> Engines:
    """Engines as an arm with the recorded extractor finds them."""
    benchmark = object.__new__(Interleaved)
    benchmark.recording, benchmark.update_seconds, benchmark._engines = recording, 0.0, Engines()
    monkeypatch.setattr(interleaved, "Arm", lambda *_, **__: None)
    run: Any = SimpleNamespace(folder=recording.parent / "run", config=config)
    monkeypatch.setattr(benchmark, "make_training", lambda run: None)
    benchmark.arm(run, extractor="recorded")
    return benchmark._engines


@pytest.fixture
def started(config: Any, lent: Engines, make_record: Any, monkeypatch: pytest.MonkeyPatch) -> ExperienceRuntime:
    """A run's experience, connected to the recorded extractor, with one full batch."""
    batch = TrainingBatch([make_record("a"), make_record("b")], [1.0, -1.0], [1.0, 1.0], [1.0, -1.0])
    for module in (experience_runtime, learner):
        monkeypatch.setattr(module, "wait_for", lambda result, seconds, what: result)
    runtime: Any = object.__new__(ExperienceRuntime)
    runtime._config, runtime._comprl, runtime._frozen = config, comprl_config(config), None
    runtime.manager, runtime._guard = Manager(next_batch=batch), SimpleNamespace(start=Mock())
    runtime._told, runtime._is_told = 0, True
    runtime.start(lent, None)
    runtime.connect(None, None)
    return runtime


async def test_a_run_connects_it_and_gets_the_recorded_answers(started: Any, config: Any) -> None:
    assert isinstance(started.extractor, RecordedExtractor)
    ((name, (generate, model, longest)),) = started.manager.asked
    assert (name, model.path) == ("connect", config.extractor.model.path)
    assert longest == config.extractor.rollout.prompt_length
    answers = [await generate(Prompt([], [1, 2, 3])) for _ in range(3)]
    assert [answer.token_ids for answer in answers] == [[7, 2], [8, 2], [7, 2]]
    assert answers[0].log_probs == [-0.5, -0.25]


def test_the_learner_updates_it(started: Any) -> None:
    assert started._learner._update_once(lambda: True)
    metrics = started._learner.metrics()
    assert metrics["comprl/extractor/updates"] == 1.0 and metrics["comprl/extractor/skipped"] == 0.0
    assert [name for name, _ in started.manager.asked] == ["connect", "next_batch", "trained"]
    assert not started.extractor.is_down


def test_the_learner_gives_up_after_as_many_failures_as_set(started: Any) -> None:
    assert started._learner._max_failures == 7


def test_the_manager_is_told_while_the_servers_sleep_for_an_update(started: Any) -> None:
    """So that a question is answered "unavailable" at once, instead of at its limit."""
    started.extractor.serving._shares_memory = True  # as with comprl.extractor.placement=shared on a GPU
    assert started._learner._update_once(lambda: True)
    assert [name for name, _ in started.manager.asked] == ["connect", "next_batch", "away", "trained", "back"]


def test_a_manager_that_starts_again_meanwhile_is_told_before_it_gets_the_extractor(
    started: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experience_runtime, "load_manager", lambda *_: None)
    monkeypatch.setattr(experience_runtime, "open_bank", lambda *_: None)
    started._checkpoints, started._step = [], 3
    started.extractor.serving._shares_memory = True
    with started.extractor.changing_weights():
        started.manager.asked.clear()
        started._restart_manager()
        assert [name for name, _ in started.manager.asked] == ["away", "connect"]


@pytest.mark.parametrize("placement", ["own", "shared"])
def test_an_extractor_on_the_actors_slots_is_trained_in_its_turns_only(placement: str) -> None:
    runtime: Any = object.__new__(ExperienceRuntime)
    extractor = SimpleNamespace(train=True, slice_seconds=5.0)
    runtime._comprl = SimpleNamespace(extractor=extractor, shares_slots=placement == "shared")
    runtime._learner = Mock()
    runtime.begin(agent_loops=[])
    runtime.take_turn()
    called = [name for name, *_ in runtime._learner.method_calls]
    assert called == (["take_turn"] if placement == "shared" else ["start"])


def test_a_checkpoint_of_it_can_be_written_and_read(started: Any, tmp_path: Path) -> None:
    started._learner._update_once(lambda: True)
    saved: list[str] = []
    assert contents.save(tmp_path, 3, started.extractor, saved.append, 5.0)
    started.extractor.weight_version = 0
    started.extractor.load(tmp_path / contents.EXTRACTOR, 1)
    assert saved and started.extractor.weight_version == 1


def test_servers_that_sleep_for_an_update_are_away_in_the_recording_too(config: Any, recording: Path) -> None:
    view = extractor_view(config)
    view.actor_rollout_ref.rollout.free_cache_engine = True
    extractor = RecordedExtractor(view, recording, 0.0)
    extractor.publish_weights()
    told: list[bool] = []
    extractor.serving.tell = told.append
    with extractor.changing_weights():
        assert told == [False]
    assert told == [False, True]


def test_it_has_every_attribute_that_a_real_one_sets(config: Any, recording: Path) -> None:
    tree = ast.parse(textwrap.dedent(inspect.getsource(ExtractorRuntime.__init__)))
    stored = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
    names = {node.attr for node in stored if isinstance(node.value, ast.Name) and node.value.id == "self"}
    assert {"config", "lock", "serving", "workers"} <= names
    assert names <= vars(RecordedExtractor(extractor_view(config), recording, 0.0)).keys()


def test_an_arm_ends_its_processes_also_if_learning_cannot_be_stopped() -> None:
    arm: Any = object.__new__(Arm)
    runtime = create_autospec(ExperienceRuntime, instance=True)
    arm.trainer = SimpleNamespace(experience_runtime=runtime, close=Mock())
    arm.close()
    assert runtime.stop.call_count == 1 and arm.trainer.close.call_count == 1
    runtime.stop.side_effect = RuntimeError("it hangs")
    with pytest.raises(RuntimeError, match="it hangs"):
        arm.close()
    assert arm.trainer.close.call_count == 2


def test_the_arm_whose_turn_it_is_hears_of_the_shared_extractor() -> None:
    arm: Any = object.__new__(Arm)
    extractor = SimpleNamespace(
        config=SimpleNamespace(comprl=SimpleNamespace(extractor=SimpleNamespace(cpu_priority="normal"))),
        serving=SimpleNamespace(tell=Mock()),
        _set_cpu_priority=Mock(),
    )
    mine = Mock()
    arm.trainer = SimpleNamespace(experience_runtime=SimpleNamespace(extractor=extractor, _tell_manager=mine))
    arm._priority = "idle"
    arm.begin_turn()
    extractor.serving.tell(False)
    mine.assert_called_once_with(False)
    assert cast(Any, extractor.config).comprl.extractor.cpu_priority == "idle"
