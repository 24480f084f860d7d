"""Names of environments: shipped, registered, and from entry points of packages."""

import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import env_adapters
from env_adapters import TextEnvironment, Transition, registry

ROOT = Path(__file__).parents[2]


class Echo(TextEnvironment):
    """Ends at once."""

    def __init__(self, *, word: str = "hi", max_turns: int = 3) -> None:
        super().__init__(max_turns=max_turns)
        self.word = word
        self.goal = self.task_id = "echo"
        self.admissible_actions = []

    def close(self) -> None:
        pass

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        return self.word

    def _play(self, action: str) -> Transition:
        return Transition(action, terminated=True)


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry._announced.cache_clear()
    yield
    registry._announced.cache_clear()


def add_entry_point(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = EntryPoint(name, value, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry] if group == entry.group else [])


def test_importing_the_package_loads_no_engine() -> None:
    code = (
        "import sys, env_adapters; env_adapters.list_environments(); "
        "print([m for m in ('nle', 'minihack', 'gymnasium', 'numpy', 'torch', 'verl_comprl') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_minihack_is_shipped() -> None:
    assert "minihack" in env_adapters.list_environments()
    environment = env_adapters.make("minihack", variant="room", max_turns=4)
    assert environment.max_turns == 4
    environment.close()


@pytest.mark.parametrize("target", [Echo, f"{__name__}:Echo"])
def test_a_registered_environment_is_made_with_its_options(target: Any) -> None:
    env_adapters.register("echo", target)
    assert "echo" in env_adapters.list_environments()
    assert env_adapters.make("echo", word="hello").reset(seed=0)[0] == "hello"


def test_an_environment_from_an_entry_point_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    add_entry_point(monkeypatch, "their-echo", f"{__name__}:Echo")
    assert {"minihack", "their-echo"} < set(env_adapters.list_environments())
    assert type(env_adapters.make("their-echo")).__name__ == "Echo"


def test_an_import_path_can_be_used_as_a_name() -> None:
    environment = env_adapters.make(f"{__name__}:Echo", word="hello")
    assert environment.reset(seed=1)[0] == "hello"
    with pytest.raises(ImportError, match="NoSuchClass"):
        env_adapters.make(f"{__name__}:NoSuchClass")
    with pytest.raises(ValueError, match="unknown environment ':Echo'"):
        env_adapters.make(":Echo")


def test_portable_names_can_be_resolved_by_another_process() -> None:
    env_adapters.register("by-class", Echo)
    env_adapters.register("by-path", "their_package:Env")
    assert registry.portable_name("by-class") == f"{__name__}:Echo"
    assert registry.portable_name("by-path") == "their_package:Env"
    assert registry.portable_name("minihack") == "minihack"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    env_adapters.register("echo", Echo)
    with pytest.raises(ValueError, match=r"'chess'; known: .*echo, .*minihack, .*env_adapters\.register") as caught:
        env_adapters.make("chess")
    assert registry.ENTRY_POINT_GROUP in str(caught.value)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'minihack' has no option 'size'; its options: variant, protocol, max_turns"):
        env_adapters.make("minihack", size=5)


def test_a_missing_dependency_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "env_adapters.minihack.environment", raising=False)
    monkeypatch.setitem(sys.modules, "nle", None)
    with pytest.raises(ImportError, match=r'nle.*pip install "verl-comprl\[minihack\]"'):
        env_adapters.make("minihack")


@pytest.mark.parametrize(
    ("path", "culprit"), [("no_such_module:Env", "no_such_module"), ("env_adapters.base:NoSuchClass", "NoSuchClass")]
)
def test_a_wrong_import_path_is_named(path: str, culprit: str) -> None:
    env_adapters.register("wrong", path)
    with pytest.raises(ImportError, match=culprit) as caught:
        env_adapters.make("wrong")
    assert "pip install" not in str(caught.value)


def test_other_classes_are_refused() -> None:
    with pytest.raises(TypeError, match="subclass of TextEnvironment or have reset"):
        env_adapters.register("dict", dict)  # pyright: ignore[reportArgumentType]
    env_adapters.register("path", "pathlib:Path")
    with pytest.raises(TypeError, match="subclass of TextEnvironment"):
        env_adapters.make("path")


@pytest.mark.parametrize("target", ["", "module", "module:", ":Class"])
def test_a_malformed_import_path_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="module:Class"):
        env_adapters.register("x", target)


def test_a_name_that_is_already_used_is_refused() -> None:
    env_adapters.register("echo", Echo)
    env_adapters.register("echo", Echo)
    for name in ("echo", "minihack"):
        with pytest.raises(ValueError, match=f"{name!r} is already registered"):
            env_adapters.register(name, "other:Thing")


def test_dataset_builders_are_found_by_name() -> None:
    rows = env_adapters.dataset_builder("minihack")(variant="room", split="train", count=2, seed=0)
    assert [row["data_source"] for row in rows] == ["minihack/room"] * 2
    env_adapters.register("echo", Echo)
    with pytest.raises(ValueError, match="'echo' has no dataset builder"):
        env_adapters.dataset_builder("echo")
    with pytest.raises(ValueError, match="unknown environment 'chess'"):
        env_adapters.dataset_builder("chess")
