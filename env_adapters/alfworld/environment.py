"""ALFWorld as a text environment.

Owns the episode: the game of a seed, the observations and the reward. The games are in ``games``, the engine in
``engine``.
"""

from typing import Any, ClassVar

from env_adapters.alfworld.engine import Engine
from env_adapters.alfworld.game_file import Game, put_template, task_of
from env_adapters.alfworld.games import list_games, resolve_data
from env_adapters.alfworld.prompt import build_instructions
from env_adapters.alfworld.protocols import PROTOCOLS
from env_adapters.alfworld.rewards import failure_reward
from env_adapters.base import TextEnvironment, Transition
from env_adapters.dataset import split_of
from env_adapters.parsing import extract_action, match_action
from env_adapters.protocols import choose


class ALFWorldEnvironment(TextEnvironment):
    """One household task per episode; even seeds are training games, odd ones held out."""

    dataset: ClassVar[str | None] = "env_adapters.alfworld.dataset:build_rows"

    def __init__(
        self,
        *,
        data: str | None = None,
        protocol: str = "paper",
        reward: str | None = None,
        held_out: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        """Find the games and load the engine.

        Args:
            data: A folder as created by ``alfworld-download``, or ``generated`` for the default games, which are
                generated on first use. None means ``$ALFWORLD_DATA``, else the default folder of
                ``alfworld-download`` if it has games, else ``generated``.
            protocol: A key of ``protocols.PROTOCOLS``, with the defaults of the other options.
            reward: ``signed`` is 1 for success and -1 for truncation without success; ``binary`` is 1 and 0.
            held_out: Folder of the games for odd seeds, ``valid_unseen`` or ``valid_seen``.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If an option has an unknown value or a folder has no games.
        """
        chosen, options = choose(PROTOCOLS, protocol, reward=reward, held_out=held_out, max_turns=max_turns)
        super().__init__(max_turns=options["max_turns"], protocol=chosen)
        self._failure_reward = failure_reward(options["reward"])
        self._held_out = options["held_out"]
        self._data = resolve_data(data)
        self._games: dict[str, list[Game]] = {}
        self._engine = Engine()

    def close(self) -> None:
        """Return the engine for use by the next instance."""
        self._engine.close()

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"alfworld has no reset option {next(iter(options))!r}; it has none")
        split, number = split_of(seed)
        if split not in self._games:
            self._games[split] = list_games(self._data, split, self._held_out)
        game = self._games[split][number % len(self._games[split])]
        content = game.read()
        view = self._engine.start(content)
        self.task_id = game.task_id
        self.goal = task_of(content)
        self.instructions = self.protocol.reword(build_instructions(put_template(content), self.max_turns))
        self.admissible_actions = view.commands
        return view.text.partition("\n\n")[2]  # without the title line

    def _read(self, action_text: str) -> str | None:
        action = extract_action(action_text)
        return match_action(action, self.admissible_actions) or match_action(_in_or_on(action), self.admissible_actions)

    def _play(self, action: str) -> Transition:
        view = self._engine.play(action)
        self.admissible_actions = view.commands
        text = view.text
        if text.startswith("You arrive at loc "):  # a location name in older games that no command accepts
            text = text.partition(". ")[2]
        return Transition(text, float(view.won), view.won, view.won, float(view.won), effective=view.changed)

    def _settle(self) -> Transition | None:
        return Transition("", reward=self._failure_reward)


def _in_or_on(action: str) -> str:
    """Return an action with ``in`` and ``on`` replaced by ``in/on``, as older games expect."""
    return " ".join("in/on" if word in ("in", "on") else word for word in action.casefold().split())
