"""Generates synthetic product catalogues in the format of WebShop's data files.

Owns how products are generated; all texts are our own. The default shop is made in memory with the default arguments.

Usage: ``python -m env_adapters.webshop.catalogue --output DIR`` writes a catalogue.
"""

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from env_adapters.webshop.product import PATH_SEPARATOR
from env_adapters.webshop.records import Records, write_records
from env_adapters.webshop.vocabulary import (
    BRANDS,
    CLOSINGS,
    DEPARTMENTS,
    MODELS,
    REASONS,
    REVIEWS,
    Department,
    Kind,
)

_LETTERS = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
_ATTRIBUTES = 4
_MAX_PRODUCTS = 100_000  # the loader, like upstream's, skips identifiers of more than ten characters
_STARS = (5, 5, 5, 4, 4, 3, 2, 1)
_INSTRUCTIONS = (
    "Find me {attributes} {query}",
    "I am looking for {query} with these properties: {attributes}",
    "I want to buy {query}, {attributes}",
    "Please order {attributes} {query} for me",
    "I need {attributes} {query}",
)


def make_records(products: int = 1000, seed: int = 0) -> Records:
    """Generate a catalogue without human instructions.

    Args:
        products: Number of products, at most 100,000.
        seed: The same seed gives the same catalogue.

    Raises:
        ValueError: If ``products`` is out of range.
    """
    if not 1 <= products <= _MAX_PRODUCTS:
        raise ValueError(f"products must be in [1, {_MAX_PRODUCTS}], got {products}")
    chosen = random.Random(seed)
    kinds = [(department, kind) for department in DEPARTMENTS for kind in department.kinds]
    names = [f"{brand} {model}" for brand in BRANDS for model in MODELS]
    chosen.shuffle(names)
    records = Records([], {}, None, {})
    for number in range(products):
        department, kind = kinds[number % len(kinds)]
        series, index = divmod(number, len(names))
        name = names[index] + (f" {series + 1}" if series else "")
        asin = f"W{number:05d}" + "".join(chosen.choices(_LETTERS, k=4))
        attributes = chosen.sample(department.attributes, _ATTRIBUTES)
        records.products.append(_product(chosen, asin, name, department, kind, attributes))
        wanted = chosen.sample(attributes, chosen.choice((1, 2, 2, 3)))
        instruction = chosen.choice(_INSTRUCTIONS).format(attributes=_join(wanted), query=kind.query)
        records.attributes[asin] = {
            "attributes": attributes,
            "instruction": instruction,
            "instruction_attributes": wanted,
        }
        records.reviews[asin] = _reviews(chosen, asin)
    chosen.shuffle(records.products)
    return records


def _product(
    chosen: random.Random, asin: str, name: str, department: Department, kind: Kind, attributes: list[str]
) -> dict[str, Any]:
    first, *others = attributes
    reasons = chosen.sample(REASONS, len(others))
    features = [f"{other.capitalize()} - {reason}" for other, reason in zip(others, reasons, strict=True)]
    # Search indexes only the title, the description and the first feature; the others are found by reading the page.
    features.insert(chosen.randrange(2), f"Made for {kind.use}")
    prices = _prices(chosen, department, kind)
    return {
        "asin": asin,
        "name": f"{name} {kind.title}, {first.title()}",
        "category": department.category,
        "query": kind.query,
        "product_category": f" {PATH_SEPARATOR} ".join((*department.path, kind.title)),
        "brand": name.split()[0],
        "full_description": " ".join([f"The {name} is our {kind.title} for {kind.use}.", *chosen.sample(CLOSINGS, 2)]),
        "small_description": features,
        "pricing": " - ".join(f"${price:.2f}" for price in sorted({min(prices), max(prices)})),
        "customization_options": _options(chosen, department, prices),
        "images": [f"{asin}.jpg"],
    }


def _prices(chosen: random.Random, department: Department, kind: Kind) -> list[float]:
    """Return the prices for the values of the option that determines the price."""
    count = len(list(department.options.values())[-1])
    kept = chosen.randint(min(3, count), min(6, count))
    cents = chosen.randint(kind.low * 100, kind.high * 100)
    step = chosen.choice((0, 0, cents // 20, cents // 8))
    return [(cents + rank * step) / 100 for rank in range(kept)]


def _options(chosen: random.Random, department: Department, prices: list[float]) -> dict[str, list[dict[str, Any]]]:
    *others, (last, values) = department.options.items()
    options = {
        name.title(): [
            {"value": value, "price": 0, "price_string": ""}
            for value in _some(chosen, values, chosen.randint(2, min(5, len(values))))
        ]
        for name, values in others
    }
    options[last.title()] = [
        {"value": value, "price": price, "price_string": f"${price:.2f}"}
        for value, price in zip(_some(chosen, values, len(prices)), prices, strict=True)
    ]
    return options


def _some(chosen: random.Random, values: Sequence[str], count: int) -> list[str]:
    return [values[index] for index in sorted(chosen.sample(range(len(values)), count))]


def _reviews(chosen: random.Random, asin: str) -> dict[str, Any]:
    stars = [chosen.choice(_STARS) for _ in range(chosen.randrange(5))]
    entry: dict[str, Any] = {"asin": asin, "reviews": []}
    for star in stars:
        title, text = chosen.choice(REVIEWS[star])
        entry["reviews"].append({"title": title, "stars": float(star), "review": text})
    if stars:
        entry["average_rating"] = round(sum(stars) / len(stars), 1)
    return entry


def _join(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def main() -> None:
    """Write a catalogue."""
    parser = argparse.ArgumentParser(description="Write a synthetic WebShop catalogue in upstream's format.")
    parser.add_argument("--output", type=Path, required=True, help="folder to write the files into")
    parser.add_argument("--products", type=int, default=1000, help="number of products (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="random seed of the catalogue (default: 0)")
    arguments = parser.parse_args()
    write_records(make_records(arguments.products, arguments.seed), arguments.output)
    print(f"wrote {arguments.products} products to {arguments.output}")


if __name__ == "__main__":
    main()
