"""The training commands of README and docs start: all that is checked before a run is right, with tiny models."""

import copy
from pathlib import Path

import pytest
from documented import ROOT, Command, pages

from verl_comprl.cli.main import main
from verl_comprl.config.composing import compose
from verl_comprl.training import check_config

MODELS = ROOT / "recipes/miniature/models/plain"
COMMANDS = [
    command
    for page in pages()
    for command in page.commands
    if command.words[:2] == ("comprl", "train")
    and any(word.startswith("extractor.model.path=") for word in command.words)
]
"""Those that name all that a run needs."""


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks for a step of any of the commands."""
    file = tmp_path_factory.mktemp("tasks") / "tasks.parquet"
    assert main(["data", "vaults", "--split", "train", "--count", "16", "--output", str(file)]) == 0
    return file


def test_there_are_some() -> None:
    assert {command.page for command in COMMANDS} >= {"README.md", "docs/cli.md"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_training_command_would_start(command: Command, tasks: Path) -> None:
    at_hand = {
        "data.train_files": tasks,
        "data.val_files": tasks,
        "actor_rollout_ref.model.path": MODELS / "actor",
        "extractor.model.path": MODELS / "extractor",
    }
    given = [word.partition("=") for word in command.words[2:]]
    overrides = [f"{name}={at_hand.get(name, value)}" for name, _, value in given]
    split = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    if split not in (name for name, *_ in given):
        overrides.append(f"{split}=1")  # verl's 2 does not divide the three attention heads of this model
    check_config(copy.deepcopy(compose(None, None, overrides)))
