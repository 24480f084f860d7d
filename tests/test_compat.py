"""Check of the installed verl: accepted version, and the errors for any other."""

import ast
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from verl_comprl import compat
from verl_comprl.compat import IncompatibleVerlError, check_symbols, installed_verl


def test_the_installed_verl_is_accepted() -> None:
    assert installed_verl() == importlib.metadata.version("verl")
    check_symbols()


def test_another_version_is_refused_with_the_command_that_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda _: "0.7.2")
    with pytest.raises(IncompatibleVerlError) as caught:
        installed_verl()
    assert str(caught.value) == "verl 0.7.2 is installed, verl-comprl works with 0.9.1: pip install verl==0.9.1"


def test_the_file_that_names_the_required_verl_names_one_that_is_accepted() -> None:
    lines = (Path(__file__).parents[1] / "REQUIRED_VERL.txt").read_text(encoding="utf-8").splitlines()
    named = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert named["VERSION"] in compat.SUPPORTED_VERL
    assert named["PIP_INSTALL"] == f"pip install verl=={named['VERSION']}"


def test_a_missing_verl_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(compat, "version", missing)
    with pytest.raises(IncompatibleVerlError, match="verl is not installed: pip install"):
        installed_verl()


@pytest.mark.parametrize(
    ("program", "module", "remedy"),
    [
        ("import ctypes; ctypes.CDLL('libcudart.so.99')", "ray.cuda", "'ray[default]>=2.41.0'"),
        ("import json; json.loads('{')", "hydra._internal", "hydra-core"),
        ("import json; json.loads('{')", "verl.trainer", "verl==0.9.1"),
        ("import json; json.loads('{')", "__main__", "verl==0.9.1"),
        ("import json; json.loads('{')", "verl_comprl.plugin", "verl==0.9.1"),
    ],
)
def test_a_library_that_raises_is_installed_again(
    program: str, module: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there, so that a plain install would do nothing; what it calls of Python itself is on no index."""

    def load(_: str) -> None:
        exec(program, {"__name__": module})

    monkeypatch.setattr(compat, "import_module", load)
    with pytest.raises(IncompatibleVerlError) as caught:
        compat.import_verl()
    assert caught.value.remedy == f"pip install --force-reinstall --no-deps {remedy}"
    assert caught.value.problem.startswith("verl 0.9.1 cannot be imported: ")


def test_a_missing_module_that_no_command_installs_is_only_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: str) -> None:
        raise ModuleNotFoundError("No module named '_ctypes'", name="_ctypes")

    monkeypatch.setattr(compat, "import_module", load)
    with pytest.raises(IncompatibleVerlError) as caught:
        compat.import_verl()
    assert str(caught.value) == "verl 0.9.1 cannot be imported, _ctypes is missing"


def test_every_missing_symbol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "half_a_verl", ModuleType("half_a_verl"))
    names = ("verl.trainer.ppo.core_algos:register_adv_est", "half_a_verl:Trainer.fit", "verl.no_such_module:anything")
    symbols = dict.fromkeys(names, "it trains")
    monkeypatch.setattr(compat, "REQUIRED_SYMBOLS", symbols)
    with pytest.raises(IncompatibleVerlError) as caught:
        check_symbols()
    message = str(caught.value)
    assert "half_a_verl:Trainer.fit (no such name; it trains)" in message
    assert "verl.no_such_module:anything (No module named 'verl.no_such_module')" in message
    assert "register_adv_est" not in message and message.startswith("verl 0.9.1 lacks")


def test_three_missing_symbols_are_named_and_the_others_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "REQUIRED_SYMBOLS", {f"wsgiref:name_{number}": "it trains" for number in range(9)})
    with pytest.raises(IncompatibleVerlError) as caught:
        check_symbols()
    assert str(caught.value).count("no such name") == 3 and caught.value.problem.endswith(" and 6 more")
    assert caught.value.remedy == "pip install --force-reinstall --no-deps verl==0.9.1"


def imported_of_verl(source: str) -> Iterator[str]:
    """Yield what a file imports of verl, at any depth, and what it takes from the modules among that."""
    tree = ast.parse(source)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, alias.asname) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [(f"{node.module}.{alias.name}", alias.asname or alias.name) for alias in node.names]
        else:
            continue
        for name, known_as in names:
            module, _, last = name.rpartition(".")
            if name.split(".")[0] != "verl" or not module:  # verl itself: its version is checked
                continue
            yield f"{module}:{last}"
            try:
                is_module = find_spec(name) is not None
            except ModuleNotFoundError:  # the name before the last is none
                is_module = False
            if known_as and is_module:
                modules[known_as] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            yield f"{modules[node.value.id]}:{node.attr}"


def test_imports_are_found_wherever_they_are() -> None:
    source = """
import verl, os
import verl.utils.fs
import verl.utils.debug as timing
from verl_comprl import compat
from .verl import mine
class A:
    def method(self):
        if True:
            from verl.utils import tensordict_utils as tu, config
        return tu.get(timing.marked_timer)
"""
    assert set(imported_of_verl(source)) == {
        "verl.utils:fs",
        "verl.utils:debug",
        "verl.utils:tensordict_utils",
        "verl.utils:config",
        "verl.utils.tensordict_utils:get",
        "verl.utils.debug:marked_timer",
    }


def test_everything_that_we_import_of_verl_is_checked() -> None:
    files = sorted(Path(compat.__file__).parent.rglob("*.py"))
    found = {
        str(file.relative_to(files[0].parent)): set(imported_of_verl(file.read_text(encoding="utf-8")))
        for file in files
    }
    assert "verl.trainer.ppo.checkpoint_callback:CheckpointCallback" in found["trainer/checkpointing.py"]
    unlisted = {name: sorted(symbols - compat.REQUIRED_SYMBOLS.keys()) for name, symbols in found.items()}
    assert {name: symbols for name, symbols in unlisted.items() if symbols} == {}


def test_a_module_is_found_whether_or_not_it_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import wsgiref

    monkeypatch.delitem(sys.modules, "wsgiref.util", raising=False)
    monkeypatch.delattr(wsgiref, "util", raising=False)
    monkeypatch.setattr(compat, "REQUIRED_SYMBOLS", dict.fromkeys(["wsgiref:util", "wsgiref:nothing"], "it trains"))
    with pytest.raises(IncompatibleVerlError, match=r"needs: wsgiref:nothing \(no such name; it trains\): pip "):
        check_symbols()


def test_behaviour_that_we_stand_on() -> None:
    """The names are there; these are what they must do."""
    from verl.checkpoint_engine.base import CheckpointEngineManager, CheckpointEngineRegistry
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer
    from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightSender

    for trainer in (PPOTrainerSync, PPOTrainerColocateAsync, PPOTrainerSeparateAsync):
        assert issubclass(trainer, PPOTrainer)
        for hook in ("on_init_end", "on_sample_end", "on_step_end"):
            assert hook in vars(trainer), "each mode ends a sampling and a step in its own way"
    assert issubclass(ReplayBufferAsync, ReplayBuffer)
    # The mode's name decides what a trainer does, so ours must report verl's name for it.
    source = inspect.getsource(trainer_base)
    assert source.count('self.trainer_mode != "sync"') + source.count('self.trainer_mode == "sync"') >= 5
    fit, step = inspect.getsource(PPOTrainer.fit), inspect.getsource(PPOTrainer.step)
    # A checkpoint is written before the end of a step, whose rows are cleared after it.
    assert fit.index("self._save_checkpoint()") < fit.index("self.on_step_end()") < fit.index("tq.kv_clear(")
    assert "self.parameter_sync_step" in step
    # What the checkpoints and stops of the asynchronous trainers stand on.
    assert "self._restored_tq_prompt_count = 0" in inspect.getsource(PPOTrainer.__init__)
    assert "self.standalone_checkpoint_manager = CheckpointEngineManager(" in inspect.getsource(PPOTrainerSeparateAsync)
    assert "reject_request" in inspect.signature(CheckpointEngineManager.abort_replicas).parameters
    # Our limit is set on this context, and only sockets of it must have it.
    assert "zmq.Context.instance()" in inspect.getsource(BucketedWeightSender)
    registry: Any = CheckpointEngineRegistry
    assert callable(registry.register) and callable(registry.new)


def test_every_private_method_of_verl_that_our_trainers_override_is_checked() -> None:
    from verl.trainer.ppo.v1.trainer_base import PPOTrainer

    from verl_comprl.trainer.trainer import ComplementaryColocateAsync, ComplementarySeparateAsync, ComplementarySync

    kinds = {*ComplementarySync.__mro__, *ComplementaryColocateAsync.__mro__, *ComplementarySeparateAsync.__mro__}
    ours = {name for kind in kinds if kind.__module__.startswith("verl_comprl.") for name in vars(kind)}
    methods = {name for name, value in vars(PPOTrainer).items() if inspect.isfunction(value)}
    overridden = {name for name in ours & methods if name.startswith("_") and not name.endswith("__")}
    assert {
        f"verl.trainer.ppo.v1.trainer_base:PPOTrainer.{name}" for name in overridden
    } <= compat.REQUIRED_SYMBOLS.keys()
    assert {"_load_checkpoint", "_save_checkpoint", "_setup"} <= overridden
