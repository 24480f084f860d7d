"""State of one visit to WebShop: the current page, and the effects of searches and clicks.

Owns the navigation between pages. Their content is in ``pages``, the score of a purchase in ``reward``.
"""

from env_adapters.webshop import pages
from env_adapters.webshop.actions import BACK, BUY, NEXT, PREVIOUS, SUB_PAGES
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.pages import Part
from env_adapters.webshop.product import Product
from env_adapters.webshop.reward import grade
from env_adapters.webshop.shop import Shop

PAGE_SIZE = 10

_BACK, _BUY, _NEXT, _PREVIOUS = BACK.lower(), BUY.lower(), NEXT.lower(), PREVIOUS.lower()
_SUB_PAGES = {name.lower(): name for name in SUB_PAGES}


class Session:
    """One visit, from the search page to a purchase.

    Attributes:
        page: The current page.
        score: Score of the purchase in [0, 1]; None before it.
    """

    page: list[Part]

    def __init__(self, shop: Shop, goal: Goal) -> None:
        """Start a visit at the search page."""
        self._shop = shop
        self._goal = goal
        self.score: float | None = None
        self._enter()

    def search(self, query: str) -> None:
        """Show the first page of results for ``query``."""
        self._found = self._shop.search(query)
        self._show_results(1)

    def click(self, text: str) -> None:
        """Click the element that the page shows as ``text``, given in lower case."""
        if text == _BACK:
            self._enter()
        elif self._product is None:
            self._click_result(text)
        elif text == _BUY:
            self.score = grade(self._product, self._options.values(), self._goal)
            self.page = pages.done_page(self.score)
        elif text == _PREVIOUS and not self._below_item:
            self._show_results(self._number)
        elif text in _SUB_PAGES:
            self._below_item = True
            self.page = pages.sub_page(self._goal.instruction, self._product, _SUB_PAGES[text])
        else:
            if text != _PREVIOUS:
                self._options[self._product.option_names[text]] = text
            self._show_item(self._product)

    def _click_result(self, text: str) -> None:
        if text == _NEXT:
            self._show_results(self._number + 1)
        elif text == _PREVIOUS:
            self._show_results(self._number - 1)
        else:
            product = next(product for product in self._on_page() if product.asin.lower() == text)
            self._visited.add(product.asin)
            self._show_item(product)

    def _enter(self) -> None:
        self._found: list[Product] = []
        self._number = 1
        self._product: Product | None = None
        self._options: dict[str, str] = {}
        self._visited: set[str] = set()
        self._below_item = False
        self.page = pages.search_page(self._goal.instruction)

    def _show_results(self, number: int) -> None:
        self._number = number
        self._product = None
        self._options = {}
        self.page = pages.results_page(self._goal.instruction, self._on_page(), number, len(self._found), self._visited)

    def _show_item(self, product: Product) -> None:
        self._product = product
        self._below_item = False
        self.page = pages.item_page(self._goal.instruction, product, self._options)

    def _on_page(self) -> list[Product]:
        return self._found[(self._number - 1) * PAGE_SIZE : self._number * PAGE_SIZE]
