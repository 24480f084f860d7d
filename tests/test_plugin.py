"""Registration of the plugin with verl, and its verification."""

import os
import subprocess
import sys

import pytest

from verl_comprl import compat, plugin
from verl_comprl.compat import IncompatibleVerlError
from verl_comprl.names import TRAINERS


def run(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)


def test_import_verl_registers_by_name_and_imports_almost_nothing() -> None:
    program = """
import sys
import verl
ours = {name for name in sys.modules if name.startswith("verl_comprl")}
print(sorted(ours - {"verl_comprl", "verl_comprl.compat", "verl_comprl.names", "verl_comprl.plugin"}))
from verl.trainer.ppo.core_algos import get_adv_estimator_fn
print(get_adv_estimator_fn("comprl_subgroup").__module__)
"""
    done = run(program, VERL_PLATFORM="")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["[]", "verl_comprl.trainer.step.estimator"]


def test_the_trainers_module_can_be_imported_first() -> None:
    """By whoever extends them: verl's trainers, which it imports, let the plugin import it again meanwhile."""
    program = """
from verl_comprl.trainer.trainer import ComplementarySync
from verl.trainer.ppo.v1 import get_trainer_cls
print(get_trainer_cls("comprl_sync") is ComplementarySync)
"""
    done = run(program, VERL_PLATFORM="cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "True"


def test_all_names_are_registered() -> None:
    plugin.verify()
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.workers.rollout.replica import get_rollout_replica_class

    classes = {get_trainer_cls(name) for name in TRAINERS}
    assert len(classes) == 3 and all(cls.__module__.startswith("verl_comprl.trainer.") for cls in classes)
    assert get_rollout_replica_class("comprl_extractor_vllm").__module__ == "verl_comprl.trainer.extractor.replica"


def test_missing_registrations_are_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY
    from verl.trainer.ppo.v1.trainer_base import TRAINER_REGISTRY

    monkeypatch.delitem(ADV_ESTIMATOR_REGISTRY, "comprl_subgroup")
    monkeypatch.delitem(TRAINER_REGISTRY, "comprl_sync")
    with pytest.raises(RuntimeError) as caught:
        plugin.verify()
    message = str(caught.value)
    assert "trainer 'comprl_sync', advantage estimator 'comprl_subgroup' missing" in message
    assert "agent loop" not in message


@pytest.mark.parametrize("policy", ["none", "another_plugin"])
def test_a_plugin_policy_that_excludes_us_is_an_error(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # In this process an import has registered the plugin; a worker relies on the entry point alone.
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    with pytest.raises(plugin.PluginLeftOut, match=f"VERL_USE_EXTERNAL_PLUGINS.*{policy}"):
        plugin.verify()


@pytest.mark.parametrize("policy", ["auto", " AUTO ", "other, comprl"])
def test_a_plugin_policy_that_includes_us_is_accepted(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", policy)
    plugin.verify()


def test_nothing_is_registered_with_an_unsupported_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    hooked = []
    monkeypatch.setattr(compat, "version", lambda _: "0.8.0")
    monkeypatch.setattr(plugin, "register_post_import_hook", lambda *hook: hooked.append(hook))
    with pytest.raises(IncompatibleVerlError, match=r"verl 0\.8\.0 is installed"):
        plugin.register()
    assert hooked == []


def test_a_failed_registration_is_the_cause_of_the_error() -> None:
    program = """
import sys
sys.modules["verl_comprl.rollout.agent_loop"] = None
from verl_comprl import plugin
try:
    plugin.verify()
except RuntimeError as error:
    print(type(error).__name__, type(error.__cause__).__name__, error)
"""
    done = run(program)
    assert done.returncode == 0, done.stderr
    line = "RuntimeError ModuleNotFoundError registration of verl-comprl with verl failed: ModuleNotFoundError("
    assert done.stdout.startswith(line) and done.stdout.endswith(" in verl_comprl.plugin\n")


def test_a_registry_that_verl_lacks_is_a_fault_of_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verl.workers.rollout.replica", None)
    with pytest.raises(
        IncompatibleVerlError, match=r"verl-comprl needs: .*import of verl\.workers\.rollout\.replica halted"
    ):
        plugin.verify()
