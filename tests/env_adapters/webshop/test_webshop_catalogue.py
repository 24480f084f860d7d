"""The synthetic WebShop catalogue: format, determinism, reachable goals."""

import hashlib
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from env_adapters.webshop.catalogue import make_records
from env_adapters.webshop.records import SYNTHETIC, read_records
from env_adapters.webshop.reward import type_factor
from env_adapters.webshop.shop import load_shop, open_shop

ROOT = Path(__file__).parents[3]


def write(folder: Path, *arguments: str) -> dict[str, str]:
    command = [sys.executable, "-m", "env_adapters.webshop.catalogue", "--output", str(folder), *arguments]
    subprocess.run(command, cwd=ROOT, capture_output=True, check=True)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_command_writes_the_default_catalogue_in_any_process(tmp_path: Path) -> None:
    files = write(tmp_path / "one")
    assert files == write(tmp_path / "two")
    assert sorted(files) == ["items_ins_v2_1000.json", "items_shuffle_1000.json", "reviews.json"]
    assert open_shop(read_records(tmp_path / "one")).goals == load_shop(SYNTHETIC).goals


def test_another_seed_makes_another_catalogue_of_the_size_asked_for(tmp_path: Path) -> None:
    write(tmp_path, "--products", "30", "--seed", "7")
    records = read_records(tmp_path)
    assert len(records.products) == 30 and records.human is None
    assert records.products != make_records(30, 8).products


def test_a_thousand_different_products_in_five_categories() -> None:
    records = make_records()
    assert len({product["asin"] for product in records.products}) == 1000
    assert len({product["name"] for product in records.products}) == 1000
    assert all(len(product["asin"]) == 10 for product in records.products)
    categories = Counter(product["category"] for product in records.products)
    assert (
        set(categories) == {"beauty", "electronics", "fashion", "garden", "grocery"} and min(categories.values()) > 90
    )
    assert len({product["query"] for product in records.products}) >= 40


def test_a_product_shows_its_attributes_and_the_range_of_its_prices() -> None:
    records = make_records()
    for product in records.products:
        entry = records.attributes[product["asin"]]
        texts = " ".join([product["name"], *product["small_description"], product["full_description"]]).lower()
        assert all(attribute in texts for attribute in entry["attributes"])
        assert set(entry["instruction_attributes"]) <= set(entry["attributes"]) and entry["instruction_attributes"]
        assert all(attribute in entry["instruction"] for attribute in entry["instruction_attributes"])
        assert product["query"] in entry["instruction"]
        *others, last = product["customization_options"].values()
        prices = [option["price"] for option in last]
        assert product["pricing"] == " - ".join(f"${price:.2f}" for price in sorted({min(prices), max(prices)}))
        assert all(option["price"] == 0 for options in others for option in options)


def test_every_product_of_a_kind_may_meet_a_goal_of_that_kind() -> None:
    products = load_shop(SYNTHETIC).products
    for one in products[::5]:
        assert all(type_factor(other, one) == 1 for other in products if other.query == one.query)


def test_the_goals_that_no_purchase_meets_are_the_blueberry_ones() -> None:
    shop = load_shop(SYNTHETIC)
    goals = [*shop.goals["train"], *shop.goals["val"]]
    assert (len(shop.goals["train"]), len(shop.goals["val"]), shop.left_out) == (12162, 3017, 209)
    assert not any("blueberry" in goal.instruction for goal in goals)
    assert any("blueberry" in product.option_names for product in shop.products)


@pytest.mark.parametrize("products", [0, 100_001])
def test_sizes_out_of_range_are_refused(products: int) -> None:
    with pytest.raises(ValueError, match=f"products must be in .*, got {products}"):
        make_records(products)
