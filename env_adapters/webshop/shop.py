"""WebShop's online shop: products, goals and search index.

Owns building a shop from records, once per process. A shop is never changed, so all environments of a process share it.
"""

import threading
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from env_adapters.webshop.catalogue import make_records
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.goals import make_goals, split_goals
from env_adapters.webshop.product import Product, read_product
from env_adapters.webshop.records import SYNTHETIC, Records, read_records
from env_adapters.webshop.search import SearchIndex
from env_adapters.webshop.solution import solve

_ASIN_LENGTH = 10
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Shop:
    """A shop.

    Attributes:
        products: All products.
        index: The search index; its numbers are indices into ``products``.
        goals: Goals that can be reached, by split of the products.
        left_out: Number of goals left out because their own product cannot meet them with any options.
    """

    products: tuple[Product, ...]
    index: SearchIndex
    goals: dict[str, tuple[Goal, ...]]
    left_out: int

    def search(self, query: str) -> list[Product]:
        """Return the products found for ``query``, best first."""
        return [self.products[number] for number in self.index.search(query)]


def load_shop(data: str, *, human: bool = False) -> Shop:
    """Return the shop of ``data``; the two shops used last are cached.

    Args:
        data: ``SYNTHETIC`` or a folder, as ``records.resolve_data`` returns it.
        human: Whether the goals are the human instructions, instead of the synthetic ones.

    Raises:
        ValueError: If the folder lacks files or goals.
    """
    with _lock:  # lru_cache does not lock: threads that ask at the same time would each load the shop
        return _load(data, human)


def open_shop(records: Records, *, human: bool = False) -> Shop:
    """Build a shop from records; ``human`` as for ``load_shop``.

    Raises:
        ValueError: If fewer than two products have goals that can be reached, or there are no human instructions.
    """
    if human and records.human is None:
        raise ValueError("goals='human' needs items_human_ins.json in the folder of the data")
    products: dict[str, Product] = {}
    goals: list[list[Goal]] = []
    left_out = 0
    for record in records.products:
        asin = record["asin"]
        if asin in products or asin == "nan" or len(asin) > _ASIN_LENGTH:  # upstream skips these
            continue
        entry = records.attributes.get(asin, {})
        product = read_product(record, entry.get("attributes", ["DUMMY_ATTR"]), records.reviews.get(asin, {}))
        made = make_goals(product, entry, (records.human or {}).get(asin, []) if human else None)
        products[asin] = product
        goals.append([goal for goal in made if solve(goal) is not None])
        left_out += len(made) - len(goals[-1])
    return Shop(
        products=tuple(products.values()),
        index=SearchIndex(map(_document, products.values())),
        goals=split_goals(goals),
        left_out=left_out,
    )


@lru_cache(maxsize=2)
def _load(data: str, human: bool) -> Shop:
    return open_shop(make_records() if data == SYNTHETIC else read_records(Path(data)), human=human)


def _document(product: Product) -> str:
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options.items())
    return " ".join((product.title, product.description, *product.features[:1], options))
