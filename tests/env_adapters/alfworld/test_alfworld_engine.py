"""The fast engine for ALFWorld, compared with TextWorld's stock engine."""

import gc
import hashlib
import inspect
import os
import random
import sys
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import fast_downward
import mementos.core
import psutil
import pytest
import textworld
from fast_downward import interface
from textworld.envs.pddl import PddlEnv, textgen
from textworld.envs.pddl import logic as pddl_logic
from textworld.logic import Rule

from env_adapters.alfworld import fast_pddl
from env_adapters.alfworld.engine import Engine, View
from env_adapters.alfworld.game_file import Game
from env_adapters.alfworld.games import list_games
from env_adapters.alfworld.problem import TASK_TYPES


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> Any:
    """ALFWorld's own stack: TextWorld's environment and ALFWorld's names."""
    monkeypatch.setenv("ALFWORLD_DATA", str(cache_folder))  # importing alfworld makes this folder
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler

    # Cached, because loading and resetting translate the same game.
    monkeypatch.setattr(fast_downward, "pddl2sas", lru_cache(maxsize=2)(fast_downward.pddl2sas))
    return AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)))


def difference(view: View, state: Any) -> str:
    """Return a short description of the first difference; pytest's comparison of long lists takes minutes."""
    if view.text != state["feedback"]:
        return f"{view.text!r} instead of {state['feedback']!r}"
    odd = sorted(set(view.commands) ^ set(state["admissible_commands"]))
    if odd or view.commands != state["admissible_commands"]:
        return f"commands in only one of them, or in another order: {odd}"
    return "" if view.won == state["won"] else "won"


def play_both(stock: Any, content: dict[str, Any], commands: list[str], random_steps: int) -> None:
    """Compare texts and admissible commands while playing the given commands, then random ones, most of them rare."""
    stock.load(content)
    state = stock.reset()
    engine = Engine()
    view = engine.start(content)
    chosen = random.Random(0)
    for turn in range(len(commands) + random_steps + 1):
        assert not difference(view, state)
        rare = [command for command in view.commands if not command.startswith("go to")]
        command = chosen.choice(rare if turn % 3 else [*view.commands, "dance"])
        if turn < len(commands):
            command = commands[turn]
            assert not view.won and command in view.commands
        state, _, _ = stock.step(command)
        view = engine.play(command)
        assert view.won or turn + 1 != len(commands)
    engine.close()


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_texts_and_commands_are_the_stock_ones(stock: Any, games: dict[str, Game], task_type: str) -> None:
    content = games[task_type].read()
    play_both(stock, content, content["walkthrough"], random_steps=6)


def test_texts_and_commands_of_the_older_dialect_are_the_stock_ones(
    stock: Any, games: dict[str, Game], older: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    content = older(games["pick_and_place_simple"].read())
    *way, put = content["walkthrough"]
    name, place = put.removeprefix("move ").split(" to ")
    play_both(stock, content, [*way, f"put {name} in/on {place}"], random_steps=4)


def test_the_replacements_are_still_needed(stock: Any, games: dict[str, Game], monkeypatch: pytest.MonkeyPatch) -> None:
    content = games["look_at_obj_in_light"].read()
    counts = {"derive": 0, "translate": 0, "load": 0}

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            counts[name] += 1
            return function(*arguments, **options)

        return call

    def spent(action: Callable[[], Any]) -> list[int]:
        before = list(counts.values())
        action()
        return [after - earlier for after, earlier in zip(counts.values(), before, strict=True)]

    grammar = textgen.ContextSensitiveGrammar
    monkeypatch.setattr(grammar, "derive", counted("derive", grammar.derive))
    monkeypatch.setattr(fast_downward, "pddl2sas", counted("translate", fast_downward.pddl2sas))
    monkeypatch.setattr(fast_downward, "load_lib", counted("load", fast_downward.load_lib))
    engine = Engine()
    engine.start(content)
    command = content["walkthrough"][0]
    commands = len(engine.play("look").commands)
    stock.load(content)
    assert spent(stock.reset)[1] == 2 and spent(lambda: engine.start(content))[1] == 0
    assert spent(lambda: stock.step(command))[0] > commands > 5 and spent(lambda: engine.play(command))[0] == 1
    assert [spent(lambda: PddlEnv())[2] for _ in range(2)] == [1, 1]
    engine.close()
    assert spent(lambda: Engine().close())[2] == 0


def test_the_replaced_internals_of_libraries_have_not_changed() -> None:
    """If this fails, read what changed in the libraries, adapt ``fast_pddl`` and pin the new digests."""
    pinned = {
        PddlEnv.__init__: "596b22f0367e",
        PddlEnv.load: "3280f48a2d5b",
        PddlEnv._gather_infos: "18e60b8a5a6c",
        PddlEnv.reset: "a80cae96e20a",
        PddlEnv.step: "5befa47f8c98",
        pddl_logic.PddlState.__init__: "e94c2d7361e3",
        pddl_logic.GameLogic.__init__: "8eb1547d426d",
        textgen._parse_and_convert: "449a49482932",
        textgen.copy_context: "ab04ca2ab859",
        textgen.ContextSensitiveGrammar.derive: "65bc95319fad",
        Rule.parse_conjunctive_query: "f0c0f15f1edb",
        interface.pddl2sas: "3b8ca044f0a3",
        interface.load_lib: "fb4555c6c2ca",
    }
    found = {part: hashlib.sha256(inspect.getsource(part).encode()).hexdigest()[:12] for part in pinned}
    assert found == pinned


def test_libraries_are_patched_only_during_our_calls(games: dict[str, Game]) -> None:
    places = {
        "translation": lambda: fast_downward.pddl2sas,
        "state": lambda: pddl_logic.PddlState,
        "context": lambda: textgen.copy_context,
        "parser": lambda: textgen._parse_and_convert,
        "query": lambda: vars(Rule)["parse_conjunctive_query"],
    }
    before, arguments = {name: place() for name, place in places.items()}, sys.argv
    engine = Engine()
    content = games["look_at_obj_in_light"].read()
    engine.start(content)
    engine.play("look")
    with pytest.raises(KeyError):
        engine.start({**content, "pddl_problem": content["pddl_problem"].replace(" - receptacle", " - nothing", 1)})
    engine.close()
    assert {name: place() for name, place in places.items()} == before
    assert sys.argv is arguments


def test_a_new_game_prints_nothing_and_is_translated_only_once(
    games: dict[str, Game], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = games["look_at_obj_in_light"].read()
    line = next(line for line in content["pddl_problem"].splitlines() if line.startswith("(canContain"))
    # Official games contain such facts twice, about which the parser prints a warning.
    content["pddl_problem"] = content["pddl_problem"].replace(line, f"{line}\n{line}", 1)
    monkeypatch.setenv("COMPRL_DATA", str(tmp_path))
    engine = Engine()
    first = engine.start(content)
    monkeypatch.setattr(fast_pddl, "_stock_translate", None)
    assert engine.start(content) == first
    engine.play(first.commands[0])
    engine.close()
    assert capfd.readouterr() == ("", "")
    assert [path.suffix for path in sorted(tmp_path.glob("*/*"))] == [".zlib"]


def test_games_run_without_a_folder_for_translations(
    games: dict[str, Game], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = Engine()
    content = games["look_at_obj_in_light"].read()
    expected = engine.start(content)
    (tmp_path / "file").touch()
    monkeypatch.setenv("COMPRL_DATA", str(tmp_path / "file"))
    assert engine.start(content) == expected
    engine.close()


def test_an_unknown_command_template_is_refused(games: dict[str, Game]) -> None:
    content = games["look_at_obj_in_light"].read()
    content["grammar"] = content["grammar"].replace('"open {r}"', '"open [{r.name | opened(r:receptacle)}]"')
    engine = Engine()
    with pytest.raises(ValueError, match=r"'open \[\{r.name"):
        engine.start(content)
    engine.close()


def test_engines_of_one_process_do_not_share_a_game(games: dict[str, Game]) -> None:
    contents = [games[name].read() for name in ("look_at_obj_in_light", "pick_clean_then_place_in_recep")]
    alone = []
    for content in contents:
        engine = Engine()
        alone.append([engine.start(content), *map(engine.play, content["walkthrough"])])
        engine.close()
    engines = [Engine() for _ in contents]
    together = [[engine.start(content)] for engine, content in zip(engines, contents, strict=True)]
    for turn in range(max(map(len, alone)) - 1):
        for engine, content, views in zip(engines, contents, together, strict=True):
            views += [engine.play(command) for command in content["walkthrough"][turn : turn + 1]]
    for engine in engines:
        engine.close()
    assert together == alone


def test_memory_and_temporary_files_do_not_grow(data: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    contents = [game.read() for split in ("train", "val") for game in list_games(data, split)]
    other = Engine()  # makes the next one need a copy of the library

    def play() -> list[int]:
        remembered = []
        for content in contents:
            engine = Engine()
            engine.play(engine.start(content).commands[0])
            engine.close()
            remembered.append(len(mementos.core._memento_cache))
        return remembered

    def resident() -> float:
        """MiB, without pages of files, which come and go as other processes need memory."""
        gc.collect()
        memory = psutil.Process().memory_info()
        return (memory.rss - getattr(memory, "shared", 0)) / 2**20

    mementos.core._memento_cache.clear()
    first = play()
    before, libraries = resident(), len(fast_pddl._libraries)
    assert [play() for _ in range(3)] == [first] * 3, "TextWorld caches more than the current game"
    other.close()
    assert resident() - before < 4
    assert len(fast_pddl._libraries) == libraries + 1
    assert os.listdir(tmp_path) == []


def test_commands_that_change_something_are_recognised(games: dict[str, Game]) -> None:
    content = games["pick_clean_then_place_in_recep"].read()
    engine = Engine()
    engine.start(content)
    for idle in ("look", "inventory", "help", "dance"):
        assert not engine.play(idle).changed
    commands = content["walkthrough"]
    assert all(engine.play(command).changed for command in commands[:-1])
    clean = next(command for command in commands if command.startswith("clean"))
    assert engine.play(commands[-1]).changed and not engine.play(clean).changed
    engine.close()
