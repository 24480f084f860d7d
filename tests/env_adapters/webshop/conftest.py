"""Folders with a small shop in the format of WebShop's data files."""

import json
from pathlib import Path
from typing import Any

import pytest


def product(asin: str, name: str, **fields: Any) -> dict[str, Any]:
    return {
        "asin": asin,
        "name": name,
        "category": "fashion",
        "query": "Scarves ",
        "product_category": "Clothing \u203a Accessories \u203a Scarves",
        "full_description": f"{name} keeps you warm.",
        "small_description": ["Soft to the touch", "Knitted in one piece"],
        "pricing": "$12.50",
        "customization_options": "",
        "images": ["none.jpg"],
        **fields,
    }


PRODUCTS = [
    product(
        "A000000001",
        "Fern Wool Scarf",
        customization_options={
            "Color": [{"value": "Red", "image": None}, {"value": " Navy/White "}],
            "Length": [{"value": "Short"}, {"value": "Long"}],
            "Style": None,
        },
    ),
    product("A000000002", "Moss Cotton Scarf", pricing="$10.00 - $20.00"),
    product("A000000003", "Reed Silk Scarf", pricing="", small_description="One line only"),
    product("A000000004", "Golden Thread Shawl", pricing="$1,299.00", full_description=None),
    product("A000000005", "Berry Tea", customization_options={"Flavor": [{"value": "Blueberry"}, {"value": "Plain"}]}),
    product("A000000001", "A second product of the same identifier"),
    product("nan", "No identifier"),
    product("A0000000012", "Too long an identifier"),
]
ATTRIBUTES = {
    asin: {"attributes": ["warm", "hand wash"], "instruction": f"Find me {words}", "instruction_attributes": ["warm"]}
    for asin, words in {
        "A000000001": "warm wool scarves",
        "A000000002": "warm cotton scarves",
        "A000000004": "warm shawls",
        "A000000005": "warm teas",
    }.items()
}
HUMAN = {
    "A000000001": [
        {"instruction": "i like a long scarf.", "instruction_attributes": ["warm"], "instruction_options": ["long"]},
        {"instruction": "i like nothing", "instruction_attributes": [], "instruction_options": []},
        {"instruction": "red", "instruction_attributes": ["warm"], "instruction_options": {"color": "red"}},
    ],
    "A000000002": [{"instruction": "cotton", "instruction_attributes": ["warm"], "instruction_options": ["green"]}],
    "A000000003": [{"instruction": "silk", "instruction_attributes": ["keeps you"], "instruction_options": []}],
}
REVIEWS = [
    {
        "asin": "A000000001",
        "average_rating": 4.5,
        "reviews": [{"title": "Nice", "stars": 5.0, "review": "It is warm."}, {"title": "Itchy", "stars": 4.0}],
    }
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without human instructions and reviews."""
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(PRODUCTS))
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(ATTRIBUTES))
    return tmp_path


@pytest.fixture
def human_folder(folder: Path) -> Path:
    """The same folder with both."""
    (folder / "items_human_ins.json").write_text(json.dumps(HUMAN))
    (folder / "reviews.json").write_text(json.dumps(REVIEWS))
    return folder
