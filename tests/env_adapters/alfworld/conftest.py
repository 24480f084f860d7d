"""ALFWorld games for all tests, generated once; nothing is written outside of temporary folders."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from env_adapters.alfworld.game_file import Game
from env_adapters.alfworld.games import list_games
from env_adapters.alfworld.generator import make_games


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("alfworld-cache")


@pytest.fixture(autouse=True)
def folders(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMPRL_DATA", str(cache_folder))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)


@pytest.fixture(scope="session")
def data(cache_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("alfworld-games")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMPRL_DATA", str(cache_folder))
        make_games(folder, 1, seed=164)  # a seed with small rooms
    return str(folder)


@pytest.fixture(scope="session")
def games(data: str) -> dict[str, Game]:
    """The training game of each type."""
    return {game.task_id.split("/")[2].split("-")[0]: game for game in list_games(data, "train")}


@pytest.fixture(scope="session")
def older() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Rewrite a game into the dialect of data older than alfworld 0.4."""
    replacements = {
        'template :: "move {o} to {r}"': 'template :: "put {o} in/on {r}"',
        "You move the {o.name} to the {r.name}.": "You put the {o.name} in/on the {r.name}.",
        "You arrive at {r.name}.": "You arrive at {lend.name}.",
    }

    def rewrite(game: dict[str, Any]) -> dict[str, Any]:
        grammar = game["grammar"]
        for new, old in replacements.items():
            assert new in grammar
            grammar = grammar.replace(new, old)
        return {**game, "grammar": grammar}

    return rewrite
