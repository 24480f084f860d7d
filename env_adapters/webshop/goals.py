"""Makes WebShop goals from products and divides them between the splits.

Owns upstream's two kinds of instruction, their price bounds and the order of the goals.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import product as all_combinations
from itertools import zip_longest
from typing import Any

from env_adapters.dataset import SPLITS
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.product import Product

_HELD_OUT = 5  # one product in five is held out

_BOUNDS = [10.0 * step for step in range(1, 100)]
_NO_BOUND = 1_000_000.0


def make_goals(product: Product, synthetic: dict[str, Any], human: list[dict[str, Any]] | None) -> list[Goal]:
    """Return the goals of a product; empty if it has no instruction with attributes.

    Args:
        product: The product.
        synthetic: Its entry in the attributes file.
        human: Its entry in the file of human instructions; None for synthetic goals.
    """
    if human is None:
        texts = _synthetic_texts(product, synthetic)
    else:
        texts = (
            (
                entry["instruction"].strip("."),
                entry["instruction_attributes"],
                _read_options(entry["instruction_options"]),
            )
            for entry in human
        )
    return [
        _bounded(product, f"webshop/{product.asin}/{number}", *text, human=human is not None)
        for number, text in enumerate(texts)
        if text[1]
    ]


def split_goals(goals: Sequence[Sequence[Goal]]) -> dict[str, tuple[Goal, ...]]:
    """Divide goals between the splits, keeping all goals of a product in one split.

    Args:
        goals: The goals of each product.

    Returns:
        Goals by split. Products take turns, so that every prefix covers as many products as possible.

    Raises:
        ValueError: If fewer than two products have goals.
    """
    having = sorted((list(of_product) for of_product in goals if of_product), key=lambda own: own[0].product.asin)
    if len(having) < 2:
        raise ValueError(f"the shop needs goals for at least two products, got {len(having)}")
    random.Random(0).shuffle(having)
    cut = max(1, len(having) // _HELD_OUT)
    return dict(zip(SPLITS, (_take_turns(having[cut:]), _take_turns(having[:cut])), strict=True))


def _take_turns(goals: Iterable[Sequence[Goal]]) -> tuple[Goal, ...]:
    return tuple(goal for turn in zip_longest(*goals) for goal in turn if goal is not None)


def _synthetic_texts(product: Product, entry: dict[str, Any]) -> Iterator[tuple[str, list[str], list[tuple[str, str]]]]:
    instruction, attributes = entry.get("instruction"), entry.get("instruction_attributes")
    if not instruction or not attributes:
        return
    names = sorted(product.options)
    for values in all_combinations(*(product.options[name] for name in names)):
        options = list(zip(names, values, strict=True))
        wishes = ", and ".join(f"{name}: {value}" for name, value in options)
        yield f"{instruction} with {wishes}" if wishes else instruction, attributes, options


def _bounded(
    product: Product,
    task_id: str,
    text: str,
    attributes: list[str],
    options: Sequence[tuple[str | None, str]],
    *,
    human: bool,
) -> Goal:
    bounds = [bound for bound in _BOUNDS if bound > product.price][:4]
    if len(bounds) < 2:
        return Goal(task_id, text, product, tuple(attributes), tuple(options), _NO_BOUND, human)
    upper = max(random.Random(task_id).sample(bounds, 2))
    text = f"{text}, and price lower than {upper:.2f} dollars"
    return Goal(task_id, text, product, tuple(attributes), tuple(options), upper, human)


def _read_options(options: dict[str, str] | list[str]) -> list[tuple[str | None, str]]:
    return list(options.items()) if isinstance(options, dict) else [(None, value) for value in options]
