"""WebShop as a text environment.

Owns the options, the parsing of actions and the reward of a purchase. The shop is in ``shop``, navigation in
``session``.
"""

from typing import Any, ClassVar

from env_adapters.base import TextEnvironment, Transition
from env_adapters.nearest import unknown_value
from env_adapters.parsing import extract_action, match_action
from env_adapters.protocols import choose
from env_adapters.webshop.actions import SEARCH_FORM
from env_adapters.webshop.draws import draws_of
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.pages import OBSERVATION_MODES, list_actions, render
from env_adapters.webshop.prompt import build_instructions
from env_adapters.webshop.protocols import PROTOCOLS
from env_adapters.webshop.records import resolve_data
from env_adapters.webshop.session import Session
from env_adapters.webshop.shop import load_shop

REWARDS = ("binary", "graded")
GOALS = ("synthetic", "human")


class WebShopEnvironment(TextEnvironment):
    """One visit to a shop: buy a product that meets an instruction.

    Attributes:
        target: The goal of the episode, including what the model is not told; for the scripted buyer.
        options: All options, those of the protocol included.
        draws: The goals by seed.
    """

    thread_safe: ClassVar[bool] = True  # the shop is shared and only read
    dataset: ClassVar[str | None] = "env_adapters.webshop.dataset:build_rows"

    target: Goal

    def __init__(
        self,
        *,
        data: str | None = None,
        protocol: str = "paper",
        goals: str = "synthetic",
        observation_mode: str | None = None,
        reward: str | None = None,
        split_by: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        """Open the shop, which is loaded on first use in a process.

        Args:
            data: ``synthetic``, or a folder with upstream's files. None means the folder in ``$WEBSHOP_DATA``, or
                ``synthetic`` if that is unset.
            protocol: A key of ``protocols.PROTOCOLS``, with the defaults of the options below.
            goals: ``synthetic``, or ``human`` for the instructions in the folder's ``items_human_ins.json``.
            observation_mode: ``text`` or ``text_rich``.
            reward: ``binary`` gives 1 for a purchase that meets all of the goal, else 0; ``graded`` gives its score.
            split_by: One of ``draws.SPLIT_BY``.
            max_turns: Turns after which the episode is truncated.

        Raises:
            ValueError: If an option is out of range or the folder lacks files.
        """
        given = {"observation_mode": observation_mode, "reward": reward, "split_by": split_by, "max_turns": max_turns}
        chosen, options = choose(PROTOCOLS, protocol, **given)
        super().__init__(max_turns=options["max_turns"], protocol=chosen)
        _check("observation_mode", options["observation_mode"], OBSERVATION_MODES)
        _check("reward", options["reward"], REWARDS)
        _check("goals", goals, GOALS)
        self.data = resolve_data(data)
        self.options = {"data": self.data, "protocol": protocol, "goals": goals, **options}
        self.observation_mode: str = options["observation_mode"]
        self.reward: str = options["reward"]
        self.shop = load_shop(self.data, human=goals == "human")
        self.draws = draws_of(self.shop, options["split_by"])
        self.instructions = chosen.reword(build_instructions(self.observation_mode, self.max_turns))
        self._session: Session | None = None

    def close(self) -> None:
        """Do nothing; there is nothing to free."""

    def _start(self, seed: int, options: dict[str, Any]) -> str:
        if options:
            raise ValueError(f"webshop has no reset option {next(iter(options))!r}; it has none")
        self.target = self.draws.goal_of(seed)
        self.task_id = self.target.task_id
        self.goal = self.target.instruction
        self._session = Session(self.shop, self.target)
        return self._show(self._session)

    def _read(self, action_text: str) -> str | None:
        name, _, argument = extract_action(action_text).partition("[")
        name, argument = name.strip().lower(), argument.rstrip()
        if not argument.endswith("]"):
            return None
        argument = argument[:-1].strip()
        if name == "search":
            return f"search[{argument}]" if argument and SEARCH_FORM in self.admissible_actions else None
        return match_action(f"{name}[{argument}]", self.admissible_actions)

    def _play(self, action: str) -> Transition:
        session = self._session
        assert session is not None
        before = session.page
        name, _, argument = action[:-1].partition("[")
        if name == "search":
            session.search(argument)
        else:
            session.click(argument)
        observation = self._show(session)
        if session.score is None:
            return Transition(observation, effective=session.page != before)
        success = session.score == 1
        reward = session.score if self.reward == "graded" else float(success)
        return Transition(observation, reward, True, success=success, score=session.score)

    def _show(self, session: Session) -> str:
        self.admissible_actions = list_actions(session.page)
        return render(session.page, self.observation_mode)


def _check(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(unknown_value(name, value, allowed))
