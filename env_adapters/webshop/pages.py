"""WebShop's pages, and their text in upstream's two observation modes.

Owns the content of each page and its order. ``session`` decides which page is shown.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from env_adapters.webshop.actions import (
    BACK,
    BUY,
    DESCRIPTION,
    FEATURES,
    NEXT,
    PREVIOUS,
    SEARCH,
    SEARCH_FORM,
    SUB_PAGES,
)
from env_adapters.webshop.product import Product

OBSERVATION_MODES = ("text", "text_rich")

_BEFORE = {"button": "", "option": "  ", "product": "\n"}


class Part(NamedTuple):
    """A piece of text on a page.

    Attributes:
        text: The text.
        kind: ``text``, ``button``, ``product`` or ``option``; all but the first can be clicked.
        clicked: Whether the option is chosen, or the product has been looked at.
    """

    text: str
    kind: str = "text"
    clicked: bool = False


def search_page(instruction: str) -> list[Part]:
    """Return the page with the search bar."""
    return [Part("WebShop"), Part("Instruction: "), Part(instruction), Part(SEARCH, "button")]


def results_page(
    instruction: str, products: Sequence[Product], number: int, total: int, visited: Set[str]
) -> list[Part]:
    """Return a page of search results.

    Args:
        instruction: The goal in words.
        products: The products on this page.
        number: Number of the page, from 1.
        total: Number of results on all pages.
        visited: Identifiers of the products that have been looked at.
    """
    parts = [*_head(instruction), Part(f"Page {number} (Total results: {total})")]
    if number > 1:
        parts.append(Part(PREVIOUS, "button"))
    parts.append(Part(NEXT, "button"))
    for product in products:
        parts += (
            Part(product.asin, "product", product.asin in visited),
            Part(product.title),
            Part(product.price_tag),
        )
    return parts


def item_page(instruction: str, product: Product, chosen: Mapping[str, str]) -> list[Part]:
    """Return the page of a product with the options ``chosen``, name to value."""
    parts = [*_head(instruction), Part(PREVIOUS, "button")]
    for name, values in product.options.items():
        parts.append(Part(name))
        parts += [Part(value, "option", chosen.get(name) == value) for value in values]
    parts += (Part(product.title), Part(f"Price: {product.price_tag}"), Part(f"Rating: {product.rating}"))
    return [*parts, *(Part(name, "button") for name in SUB_PAGES), Part(BUY, "button")]


def sub_page(instruction: str, product: Product, name: str) -> list[Part]:
    """Return one of the ``SUB_PAGES`` of a product."""
    if name == DESCRIPTION:
        texts: Iterable[str] = (product.description,)
    elif name == FEATURES:
        texts = (f" {line}" for line in product.features)
    else:
        texts = (text for review in product.reviews for text in (f'"{review.title}"', review.score, review.body))
    return [*_head(instruction), Part(PREVIOUS, "button"), *map(Part, texts)]


def done_page(score: float) -> list[Part]:
    """Return the page after a purchase."""
    return [Part("Thank you for shopping with us!"), Part("Your score (min 0.0, max 1.0)"), Part(str(score))]


def list_actions(parts: Iterable[Part]) -> list[str]:
    """Return the actions that a page allows: buttons, then products and options, without duplicates."""
    clickable = sorted((part for part in parts if part.kind != "text"), key=lambda part: part.kind != "button")
    actions = (SEARCH_FORM if part.text == SEARCH else f"click[{part.text.lower()}]" for part in clickable)
    return list(dict.fromkeys(actions))


def render(parts: Iterable[Part], mode: str) -> str:
    """Return a page as text, in one of the ``OBSERVATION_MODES``; empty parts are skipped."""
    shown = [part for part in parts if part.text]
    if mode == "text":
        return " [SEP] ".join(part.text.strip() for part in shown)
    chosen = [f"You have clicked {part.text}." for part in shown if part.kind == "option" and part.clicked]
    return "\n".join([*reversed(chosen), *map(_render_part, shown)])


def _render_part(part: Part) -> str:
    text, kind, clicked = part
    if kind == "text":
        return text
    return _BEFORE[kind] + (f"[clicked button] {text} [clicked button_]" if clicked else f"[button] {text} [button_]")


def _head(instruction: str) -> tuple[Part, ...]:
    return Part("Instruction:"), Part(instruction), Part(BACK, "button")
