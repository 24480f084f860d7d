"""Faster version of TextWorld's PDDL environment; all code that relies on internals of other libraries is here.

The stock environment takes 0.3 to 1 s for a reset and 30 to 80 ms for a step, copies a library of 33 MB per instance,
leaks memory with every instance and game, and changes ``sys.argv``. This version gives exactly the same texts and
commands, with these differences:

- Of the planner's two translations of a game, the one for replanning is skipped. The other is cached on disk, because
  the processes of a host are too short-lived to cache it in memory.
- Commands are formatted from their templates instead of each being derived from the grammar.
- Deriving a text makes shallow copies of its context and parses each expression once.
- TextWorld's cache of past games is cleared when the next game starts.
- Loaded planner libraries are reused, and the first one of a process is the installed file instead of a copy.
"""

import hashlib
import io
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from copy import deepcopy
from ctypes import CDLL, c_bool
from functools import lru_cache
from importlib.metadata import version
from typing import Any

import fast_downward
import mementos.core
from fast_downward import interface
from textworld.core import EnvInfos, Environment, GameState
from textworld.envs.pddl import PddlEnv, textgen
from textworld.envs.pddl import logic as pddl_logic
from textworld.logic import Rule

from env_adapters.data_folder import data_folder

_GO_TO = "[{r.name | receptacleatlocation(r:receptacle, lend:location)}]"
_CACHE = f"alfworld-translations-{version('fast-downward-textworld')}"
_libraries: list[Any] = []
_copies_needed = False


class FastPddlEnv(PddlEnv):
    """TextWorld's ``PddlEnv`` with the differences above; plays one game at a time."""

    def __init__(self, names: Callable[[Iterable[str]], dict[str, str]]) -> None:
        """Take a planner library, whose state is global to each loaded copy.

        Args:
            names: Function from object ids to display names.
        """
        Environment.__init__(self, EnvInfos(admissible_commands=True))  # PddlEnv.__init__ would load another library
        self._names = names
        self.downward_lib = _take_library()

    def close(self) -> None:
        """Return the planner for use by the next instance of this process; may be called more than once."""
        if (library := self.__dict__.pop("downward_lib", None)) is not None:
            _libraries.append(library)

    def load(self, filename_or_data: Any) -> None:
        """Load a game from the parsed content of a ``.tw-pddl`` file; ``reset`` starts it."""
        self._game_data: Mapping[str, Any] = filename_or_data
        self._logic = _logic(filename_or_data["pddl_domain"], filename_or_data["grammar"])
        self._templates = {name: _format_string(action.template) for name, action in self._logic.actions.items()}

    def reset(self) -> GameState:
        """Start the game."""
        mementos.core._memento_cache.clear()
        with (
            _replaced(pddl_logic, "PddlState", self._new_state),
            _replaced(fast_downward, "pddl2sas", _translate),
            _fast_texts(),
        ):
            return super().reset()

    def step(self, command: str) -> tuple[GameState, float, bool]:
        """Play a command."""
        with _fast_texts():
            return super().step(command)

    def facts(self) -> set[Any]:
        """Return the current facts, apart from the record of what has been looked at."""
        return {fact for fact in self._pddl_state.facts if not fact.name.endswith("checked")}

    def _new_state(self, *arguments: Any) -> Any:
        self._pddl_state = _StockState(*arguments)
        self._entity_infos: Any = self._get_entity_infos()
        for id_, name in self._names(self._entity_infos).items():
            self._entity_infos[id_].name = name
        return self._pddl_state

    def _gather_infos(self) -> None:
        state = self.state
        state["won"], state["lost"] = self._pddl_state.check_goal(), False
        state["_valid_actions"] = self._pddl_state.all_applicable_actions()
        state["_valid_commands"] = [self._command(action) for action in state["_valid_actions"]]
        state["admissible_commands"] = sorted(set(state["_valid_commands"]))

    def _command(self, action: Any) -> str:
        infos = {place.name: self._entity_infos[variable.name] for place, variable in action.mapping.items()}
        return self._templates[action.name].format(**infos)


@lru_cache(maxsize=2)
def _logic(domain: str, grammar: str) -> Any:
    return pddl_logic.GameLogic(domain=domain, grammar=grammar)


def _format_string(template: str) -> str:
    # The receptacle in the query is already bound, so the query can only return that one.
    simple = template.replace(_GO_TO, "{r}")
    if set(simple) & set("[]#|"):
        raise ValueError(f"the game has a command template that is not supported: {template!r}")
    return simple


# Replacements for functions of the libraries, in place only while an environment of ours resets or steps.

_StockState = pddl_logic.PddlState
_stock_translate = fast_downward.pddl2sas
_parse_query = lru_cache(maxsize=1024)(Rule.parse_conjunctive_query)
_parse_symbols = lru_cache(maxsize=1024)(textgen._parse_and_convert)


def _copy_context(context: dict[str, Any]) -> dict[str, Any]:
    return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}


def _fresh_symbols(*arguments: Any, **options: Any) -> Any:
    # Callers attach a context to the symbols, which on a cached object would keep a whole game in memory.
    return deepcopy(_parse_symbols(*arguments, **options))


def _translate(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> tuple[Any, str]:
    if optimize:  # for replanning
        return None, ""
    name = hashlib.sha256(f"{domain}\0{problem}".encode()).hexdigest()
    with suppress(OSError):  # without a writable disk it still works, only slower
        file = data_folder(_CACHE, lambda folder: None) / f"{name}.zlib"
        if file.exists():
            return _parse_task(domain, problem), zlib.decompress(file.read_bytes()).decode()
    with _replaced(sys, "argv", ["", "", ""]):  # the translator sets sys.argv, and reads it when imported
        task, sas = _stock_translate(domain, problem)
    with suppress(OSError):
        part = data_folder(_CACHE, lambda folder: None) / f"{name}.{os.getpid()}.part"
        part.write_bytes(zlib.compress(sas.encode()))
        part.replace(part.with_name(f"{name}.zlib"))
    return task, sas


def _parse_task(domain: str, problem: str) -> Any:
    with _replaced(sys, "argv", ["", "", ""]), redirect_stdout(io.StringIO()):
        from fast_downward.translate import normalize
        from fast_downward.translate.pddl_parser import lisp_parser, parsing_functions

        parsed = (lisp_parser.parse_nested_list(text.split("\n")) for text in (domain, problem))
        task = parsing_functions.parse_task(*parsed)
        normalize.normalize(task)
    return task


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextmanager
def _fast_texts() -> Iterator[None]:
    with (
        _replaced(textgen, "copy_context", _copy_context),
        _replaced(textgen, "_parse_and_convert", _fresh_symbols),
        _replaced(Rule, "parse_conjunctive_query", staticmethod(_parse_query)),
    ):
        yield


def _take_library() -> Any:
    # The planner's state is global to a loaded library, and loading the same file again gives the same library: two
    # engines that are open at the same time need copies under different names, which ``load_lib`` makes.
    global _copies_needed
    if _libraries:
        return _libraries.pop()
    if _copies_needed:
        library: Any = interface.load_lib()
    else:
        library = CDLL(interface.DOWNWARD_LIB_PATH)
        library.check_goal.restype = c_bool
    _copies_needed = True
    library.load_sas_replan = lambda sas: None  # ``_translate`` skips the translation for replanning
    return library
