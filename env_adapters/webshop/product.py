"""WebShop products, as used by pages, search and reward.

Owns reading a record of upstream's product file. The set of products is in ``shop``.
"""

import random
import re
from dataclasses import dataclass
from typing import Any

from env_adapters.webshop.actions import RESERVED
from env_adapters.webshop.words import content_words

_AMOUNT = re.compile(r"\$\s*(\d[\d,]*(?:\.\d+)?|\.\d+)")
_DEFAULT_PRICE = 100.0

PATH_SEPARATOR = "\u203a"
"""Separates the names in a category path."""


@dataclass(frozen=True, slots=True)
class Review:
    """A buyer's review."""

    title: str
    score: str
    body: str


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Attributes:
        asin: Identifier.
        title: Name shown on the pages.
        description: Text of the description page.
        features: Lines of the features page.
        reviews: Reviews on the reviews page.
        rating: Average rating, or ``N.A.``.
        price_tag: Price as shown on the pages; may be a range.
        price: Price of a purchase, independent of the options.
        options: Values to choose from, by option name.
        option_names: Option that a click on a value sets, by value; the last one if several options have the value.
        attributes: Hidden attributes that the reward compares.
        query: Hidden search query under which upstream files the product.
        categories: Hidden names in its category path.
        type_words: Content words of the title.
    """

    asin: str
    title: str
    description: str
    features: tuple[str, ...]
    reviews: tuple[Review, ...]
    rating: str
    price_tag: str
    price: float
    options: dict[str, tuple[str, ...]]
    option_names: dict[str, str]
    attributes: tuple[str, ...]
    query: str
    categories: frozenset[str]
    type_words: tuple[str, ...]


def read_product(record: dict[str, Any], attributes: list[str], reviews: dict[str, Any]) -> Product:
    """Read a record.

    Args:
        record: Entry of the product file.
        attributes: The product's entry in the attributes file.
        reviews: The product's entry in the reviews file, empty if it has none.

    Raises:
        KeyError: If a field is missing.
    """
    features = record["small_description"] or ()
    options = _read_options(record["customization_options"] or {})
    prices = [float(amount.replace(",", "")) for amount in _AMOUNT.findall(record.get("pricing") or "")][:2]
    prices = prices or [_DEFAULT_PRICE]
    return Product(
        asin=record["asin"],
        title=record["name"],
        description=record["full_description"] or "",
        features=tuple(features) if isinstance(features, list | tuple) else (features,),
        reviews=tuple(_read_review(review) for review in reviews.get("reviews", ())),
        rating=str(reviews.get("average_rating", "N.A.")),
        price_tag=" to ".join(f"${price}" for price in prices),
        # Upstream also draws a price from a range, but without a fixed seed.
        price=prices[0] if len(prices) == 1 else random.Random(record["asin"]).uniform(*prices),
        options=options,
        option_names={value: name for name, values in options.items() for value in values if value not in RESERVED},
        attributes=tuple(attributes),
        query=record["query"].lower().strip(),
        categories=frozenset(name.strip() for name in record["product_category"].split(PATH_SEPARATOR)),
        type_words=content_words(record["name"]),
    )


def _read_options(contents: dict[str, list[dict[str, Any]] | None]) -> dict[str, tuple[str, ...]]:
    return {
        name.lower(): tuple(entry["value"].strip().replace("/", " | ").lower() for entry in entries)
        for name, entries in contents.items()
        if entries is not None
    }


def _read_review(review: dict[str, Any]) -> Review:
    score = review["score"] if "score" in review else review["stars"]
    return Review(str(review.get("title", "")), str(score), str(review.get("review", "")))
