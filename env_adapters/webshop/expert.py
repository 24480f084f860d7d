"""Scripted WebShop buyer that knows the product the goal was made from.

Owns a policy that reaches reward 1 on every goal through the pages: it searches, turns pages, opens the product,
chooses the options and buys. It shows the highest reachable reward, not what the instruction alone makes possible.
"""

from collections.abc import Sequence

from env_adapters.webshop.actions import BACK, BUY, NEXT, SEARCH_FORM
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.search import HITS
from env_adapters.webshop.session import PAGE_SIZE
from env_adapters.webshop.solution import solve

_LAST_PAGE = HITS // PAGE_SIZE


class ScriptedPolicy:
    """Plays one episode; create a new instance for the next."""

    def __init__(self, goal: Goal) -> None:
        """Start at the search page.

        Args:
            goal: The environment's ``target``.

        Raises:
            ValueError: If the goal's own product does not meet it.
        """
        options = solve(goal)
        if options is None:
            raise ValueError(f"goal {goal.task_id!r} cannot be reached with its own product")
        self._product = f"click[{goal.product.asin.lower()}]"
        self._clicks = [f"click[{value}]" for value in options.values()]
        # Search for the instruction first; if the product is not on the first page of results, search for its title.
        self._queries = [(goal.instruction, 1), (goal.product.title, _LAST_PAGE)]
        self._pages_left = 0

    def act(self, admissible_actions: Sequence[str]) -> str:
        """Return the next action, given the admissible actions of the page."""
        if SEARCH_FORM in admissible_actions:
            query, self._pages_left = self._queries.pop(0)
            return f"search[{query}]"
        if self._product in admissible_actions:
            return self._product
        if f"click[{BUY.lower()}]" in admissible_actions:
            return self._clicks.pop(0) if self._clicks else f"click[{BUY.lower()}]"
        self._pages_left -= 1
        return f"click[{NEXT.lower()}]" if self._pages_left > 0 else f"click[{BACK.lower()}]"
