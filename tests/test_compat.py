"""Check of the installed verl: accepted version, and the errors for any other."""

import importlib.metadata
import sys
from types import ModuleType

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


def test_a_missing_verl_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(compat, "version", missing)
    with pytest.raises(IncompatibleVerlError, match="verl is not installed: pip install"):
        installed_verl()


def test_every_missing_symbol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "half_a_verl", ModuleType("half_a_verl"))
    symbols = ("verl.trainer.ppo.core_algos:register_adv_est", "half_a_verl:Trainer", "no_such_module_here:anything")
    monkeypatch.setattr(compat, "REQUIRED_SYMBOLS", symbols)
    with pytest.raises(IncompatibleVerlError) as caught:
        check_symbols()
    message = str(caught.value)
    assert "half_a_verl:Trainer (no such name)" in message
    assert "no_such_module_here:anything (No module named 'no_such_module_here')" in message
    assert "register_adv_est" not in message and message.startswith("verl 0.9.1 lacks")
