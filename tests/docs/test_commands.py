"""Commands in README and docs: programs, options, targets, extras and settings exist; datasets are written as told."""

import argparse
import importlib.util
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
import pytest
import setuptools
import yaml
from documented import ROOT, Command, Page, pages
from hydra.core.global_hydra import GlobalHydra

from verl_comprl.cli.main import build_parser, main
from verl_comprl.config.reading import comprl_config, unknown_overrides

PAGES = pages()
COMMANDS = [command for page in PAGES for command in page.commands]
FOREIGN = {
    "alfworld-download",
    "apt-get",
    "cd",
    "docker",
    "git",
    "hf",
    "jupyter",
    "kubectl",
    "pre-commit",
    "source",
    "tensorboard",
}
LAUNCHERS = ("verl_comprl.train", "verl_comprl.launch", "verl_comprl.sweep")
OPTIONS = ("--config-dir", "--config-name", "--cfg", "--info", "--runs")
"""Hydra's and the sweep's, each with a value."""

QUICK = ("frozenlake", "minihack", "sokoban", "vaults", "webshop", "cliff:", "examples.")
"""Environments whose data are written in seconds; ALFWorld generates games and SWE-bench builds repositories first."""


def options_of(parser: argparse.ArgumentParser) -> set[tuple[str, ...]]:
    """Return the names of each option of a command and of its sub-commands."""
    found: set[tuple[str, ...]] = set()
    for action in parser._actions:  # argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):
            found |= {names for command in action.choices.values() for names in options_of(command)}
        elif action.option_strings:
            found.add(tuple(action.option_strings))
    return found


def test_every_option_of_our_commands_is_documented() -> None:
    text = "\n".join(page.text for page in PAGES)
    found = options_of(build_parser())
    assert ("--where",) in found  # of a sub-command's sub-command
    unknown = {names for names in found if not any(re.search(rf"(?<![\w-]){name}(?![\w-])", text) for name in names)}
    assert unknown == set()


class ParsedError(Exception):
    """The command line has been parsed."""


@pytest.fixture
def parse_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every program end when it has parsed its arguments."""
    depth = 0  # these call one another, and those of sub-commands

    def ending(parse: Callable[..., Any]) -> Callable[..., Any]:
        def parse_and_end(*given: Any, **named: Any) -> Any:
            nonlocal depth
            depth += 1
            try:
                result = parse(*given, **named)
            finally:
                depth -= 1
            if depth:
                return result
            raise ParsedError

        return parse_and_end

    def refused(self: argparse.ArgumentParser, message: str) -> None:
        raise AssertionError(f"{self.prog}: {message}")

    for name in ("parse_args", "parse_known_args", "parse_intermixed_args"):
        monkeypatch.setattr(argparse.ArgumentParser, name, ending(getattr(argparse.ArgumentParser, name)))
    monkeypatch.setattr(argparse.ArgumentParser, "error", refused)


@pytest.fixture
def check(parse_only: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Command], None]:
    for name in ("COMPRL_TASKS", "COMPRL_RUN", "COMPRL_MODELS", "COMPRL_MINIATURE"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.chdir(ROOT)
    return lambda command: Checker(monkeypatch, tmp_path, command).check(list(command.words))


class Checker:
    """Checks one command without running it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, command: Command) -> None:
        """Take a folder for files that the page tells its reader to write."""
        self.monkeypatch, self.folder, self.command = monkeypatch, folder, command

    def check(self, words: list[str]) -> None:
        """Check a command or fail."""
        program, arguments = words[0].removeprefix(".venv/bin/"), words[1:]
        if "=" in program:
            self.compose(words)
        elif program == "comprl" and arguments[:1] == ["train"]:
            self.compose(arguments[1:])
        elif program == "comprl":
            self.parse(lambda: main(arguments))
        elif program == "make":
            targets = set(re.findall(r"^([a-z0-9]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
            assert {word for word in arguments if "=" not in word} <= targets
        elif program == "pip":
            self.extras(arguments)
        elif program == "pytest":
            assert all((ROOT / word).exists() for word in arguments if word.startswith("tests"))
        elif program == "bash":
            self.recipe(arguments)
        elif program == "python":
            self.python(arguments)
        elif program == "torchrun":
            self.python(arguments[arguments.index("-m") :])
        elif program == "sbatch":
            script = next(position for position, word in enumerate(arguments) if word.endswith(".sh"))
            assert (ROOT / arguments[script]).exists()
            self.compose(arguments[script + 1 :])
        elif program == "eval":
            self.check(shlex.split(arguments[0].removeprefix("$(").removesuffix(")")))
        elif program == "ray" and "--" in arguments:
            self.check(arguments[arguments.index("--") + 1 :])
        else:
            assert program in FOREIGN | {"ray"}, f"{program} is not known to this test"

    def extras(self, arguments: list[str]) -> None:
        found: dict[str, Any] = {}
        with self.monkeypatch.context() as patch:
            patch.setattr(setuptools, "setup", lambda **settings: found.update(settings))
            patch.chdir(ROOT)
            runpy.run_path(str(ROOT / "setup.py"))
        wanted = re.findall(r"(?:verl-comprl|\.)\[([\w,-]+)\]", " ".join(arguments))
        assert {extra for names in wanted for extra in names.split(",")} <= set(found["extras_require"])

    def recipe(self, arguments: list[str]) -> None:
        script, name, *rest = arguments
        setting = rest.pop(0) if rest and "=" not in rest[0] else "paper"
        assert (ROOT / script).exists() and (ROOT / "recipes" / name / "tasks.sh").exists()
        self.compose(["--config-dir", "recipes", "--config-name", f"{name}/{setting}", *rest])

    def python(self, arguments: list[str]) -> None:
        name, rest = (arguments[1], arguments[2:]) if arguments[0] == "-m" else (arguments[0], arguments[1:])
        if name in LAUNCHERS:
            self.compose(rest)
            return
        spec = importlib.util.find_spec(name) if arguments[0] == "-m" else None
        file = Path(str(spec.origin)) if spec else ROOT / name
        if not rest or "ArgumentParser" not in file.read_text(encoding="utf-8"):
            assert file.exists() and not rest
            return
        self.monkeypatch.setattr(sys, "argv", [name, *rest])
        self.parse(
            lambda: runpy.run_module(name, run_name="__main__") if spec else runpy.run_path(name, run_name="__main__")
        )

    def parse(self, program: Callable[[], Any]) -> None:
        """Let a program parse its arguments. A sentence may name a command without what it needs."""
        try:
            program()
        except ParsedError:
            return
        except SystemExit as ended:
            assert ended.code in (0, None)  # --help
        except AssertionError as error:
            incomplete = re.search(
                r"required|expected (one|at least one) argument|invalid int value: '[A-Z]'", str(error)
            )
            if self.command.in_block or not incomplete:
                raise

    def compose(self, arguments: list[str]) -> None:
        """Compose the config of a run, with every choice of a sweep."""
        options: dict[str, str] = {}
        overrides: list[str] = []
        rest = iter(arguments)
        for word in rest:
            if word in OPTIONS:
                options[word] = next(rest)
            elif word != "--help":
                overrides.append(word)
        # A sweep's choice a,b; a list has brackets.
        overrides = [re.sub(r"=([^\[\]{},]+),.*", r"=\1", override) for override in overrides]
        assert unknown_overrides(overrides) == []
        assert all("=" in override for override in overrides)
        GlobalHydra.instance().clear()
        places = ["pkg://verl.trainer.config", "pkg://verl_comprl.config"]
        folder, name = ROOT / "verl_comprl/config", options.get("--config-name", "comprl_trainer")
        if "--config-name" in options:
            folder = ROOT / options["--config-dir"]
        elif "--config-dir" in options:
            places.append(f"file://{self.settings()}")
        with hydra.initialize_config_dir(str(folder), version_base=None):
            config = hydra.compose(name, overrides=[f"hydra.searchpath=[{','.join(places)}]", *overrides])
        comprl_config(config)

    def settings(self) -> Path:
        """Write the settings that the page tells its reader to write, and return their folder."""
        page = next(page for page in PAGES if page.name == self.command.page)
        for block in page.blocks("yaml"):
            if block.startswith("# @package _global_"):
                file = self.folder / "arm" / f"{yaml.safe_load(block)['comprl']['arm']}.yaml"
                file.parent.mkdir(exist_ok=True)
                file.write_text(block)
        return self.folder


def is_slow(command: Command) -> bool:
    return command.words[0] == "python" and any(word.startswith(("recipes.", "benchmarks.")) for word in command.words)


@pytest.mark.parametrize(
    "command",
    [pytest.param(item, marks=[pytest.mark.slow] if is_slow(item) else [], id=str(item)) for item in COMMANDS],
)
def test_a_command_is_as_the_code_wants_it(command: Command, check: Callable[[Command], None]) -> None:
    check(command)


def test_most_commands_are_found() -> None:
    assert len(COMMANDS) > 80 and len({command.page for command in COMMANDS}) > 15


def write_modules(page: Page, folder: Path) -> None:
    """Write the programs of a page that begin with the name of their file."""
    for block in page.blocks("python"):
        if named := re.match(r"# (\w+\.py)", block):
            (folder / named[1]).write_text(block)


def quick_data(page: Page) -> list[Command]:
    return [
        command
        for command in page.commands
        if command.in_block and command.words[:2] == ("comprl", "data") and command.words[2].startswith(QUICK)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if quick_data(page)], ids=lambda page: page.name)
def test_datasets_are_written_as_the_page_says(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_modules(page, tmp_path)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for command in quick_data(page):
        output = Path(command.words[command.words.index("--output") + 1])
        output.unlink(missing_ok=True)
        assert main(list(command.words[1:])) == 0, capsys.readouterr().err
        assert output.exists()
