"""Loading WebShop's data files, and the goals made from them."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest

from env_adapters.webshop import shop as module
from env_adapters.webshop.product import read_product
from env_adapters.webshop.records import SYNTHETIC, read_records, resolve_data
from env_adapters.webshop.shop import Shop, load_shop, open_shop


def goals_of(shop: Shop) -> dict[str, list[str]]:
    made: dict[str, list[str]] = {}
    for goal in (*shop.goals["train"], *shop.goals["val"]):
        made.setdefault(goal.product.asin, []).append(goal.instruction)
    return made


def test_products_are_read_as_upstream_reads_them(human_folder: Path) -> None:
    first, second, third, fourth, tea = open_shop(read_records(human_folder)).products
    assert (first.title, first.query, first.price, first.price_tag) == ("Fern Wool Scarf", "scarves", 12.5, "$12.5")
    assert first.options == {"color": ("red", "navy | white"), "length": ("short", "long")}
    assert first.option_names == {"red": "color", "navy | white": "color", "short": "length", "long": "length"}
    assert first.categories == {"Clothing", "Accessories", "Scarves"}
    assert first.attributes == ("warm", "hand wash") and third.attributes == ("DUMMY_ATTR",)
    assert first.rating == "4.5" and [review.title for review in first.reviews] == ["Nice", "Itchy"]
    assert second.price_tag == "$10.0 to $20.0" and 10 < second.price < 20
    assert third.price == 100.0 and third.price_tag == "$100.0" and third.features == ("One line only",)
    assert fourth.price == 1299.0 and fourth.description == "" and fourth.rating == "N.A."
    assert tea.options == {"flavor": ("blueberry", "plain")}


def test_synthetic_goals_ask_for_each_combination_and_a_price_above_the_products(folder: Path) -> None:
    shop = open_shop(read_records(folder))
    made = goals_of(shop)
    assert sorted(text.partition(", and price")[0] for text in made["A000000001"]) == [
        f"Find me warm wool scarves with color: {color}, and length: {length}"
        for color in ("navy | white", "red")
        for length in ("long", "short")
    ]
    assert made["A000000004"] == ["Find me warm shawls"]  # there is no bound above 990 dollars
    assert made["A000000005"][0].startswith("Find me warm teas with flavor: plain, and price lower than ")
    assert "A000000003" not in made and shop.left_out == 1  # blueberry is taken for blue
    for goal in (*shop.goals["train"], *shop.goals["val"]):
        assert goal.product.price < goal.price_upper
        if goal.price_upper < 1000:
            # The second to the fourth multiple of ten above the price.
            assert 10 < goal.price_upper - goal.product.price <= 40 and goal.price_upper % 10 == 0
            assert goal.instruction.endswith(f", and price lower than {goal.price_upper:.2f} dollars")


def test_human_goals_are_chosen_not_found(human_folder: Path, folder: Path) -> None:
    # The mere presence of the file changes nothing: the published goals are synthetic.
    assert "A000000003" not in goals_of(open_shop(read_records(human_folder)))
    shop = open_shop(read_records(human_folder), human=True)
    made = goals_of(shop)
    assert sorted(made) == ["A000000001", "A000000003"]
    assert all(goal.human for goal in shop.goals["train"])
    assert [text.partition(",")[0] for text in sorted(made["A000000001"])] == ["i like a long scarf", "red"]
    assert made["A000000003"][0].startswith("silk, and price lower than ")
    assert shop.left_out == 1  # the goal that asks for green


def test_a_product_is_in_one_split_and_products_take_turns() -> None:
    shop = load_shop(SYNTHETIC)
    train, val = ({goal.product.asin for goal in shop.goals[split]} for split in ("train", "val"))
    assert not train & val and len(train) + len(val) > 980
    assert len(val) == (len(train) + len(val)) // 5
    for split, asins in (("train", train), ("val", val)):
        goals = shop.goals[split]
        assert len({goal.task_id for goal in goals}) == len(goals)
        assert {goal.product.asin for goal in goals[: len(asins)]} == asins


def test_the_same_files_give_the_same_goals(folder: Path) -> None:
    first, second = (open_shop(read_records(folder)).goals for _ in range(2))
    assert first == second


def test_threads_share_one_shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    monkeypatch.setattr(module, "read_records", lambda path: made.append(path) or read_records(path))
    with ThreadPoolExecutor(8) as threads:
        shops = list(threads.map(load_shop, [str(folder)] * 16))
    assert made == [folder] and all(one is other for one, other in pairwise(shops))


def test_the_folder_comes_from_the_option_or_the_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WEBSHOP_DATA", raising=False)
    assert resolve_data(None) == "synthetic"
    monkeypatch.setenv("WEBSHOP_DATA", str(folder))
    assert resolve_data(None) == str(folder) and resolve_data("synthetic") == "synthetic"
    monkeypatch.chdir(folder.parent)
    assert resolve_data(folder.name) == str(folder)


def test_a_folder_without_the_files_is_refused(folder: Path) -> None:
    (folder / "items_ins_v2_1000.json").rename(folder / "items_ins_v2.json")
    with pytest.raises(ValueError, match=r"no WebShop data in .*items_shuffle_1000.json and items_ins_v2_1000.json"):
        load_shop(str(folder))
    (folder / "items_shuffle_1000.json").rename(folder / "items_shuffle.json")
    assert len(load_shop(str(folder)).products) == 5


def test_a_shop_needs_goals_for_two_products(folder: Path) -> None:
    (folder / "items_human_ins.json").write_text(json.dumps({}))
    with pytest.raises(ValueError, match="goals for at least two products, got 0"):
        load_shop(str(folder), human=True)
    (folder / "items_human_ins.json").unlink()
    with pytest.raises(ValueError, match=r"goals='human' needs items_human_ins.json"):
        load_shop(str(folder / "."), human=True)


@pytest.mark.parametrize(
    ("pricing", "tag", "price"),
    [("$.99", "$0.99", 0.99), ("$ .5", "$0.5", 0.5), ("$1,299.00", "$1299.0", 1299.0), ("free", "$100.0", 100.0)],
)
def test_prices_are_read_in_every_form(pricing: str, tag: str, price: float) -> None:
    texts = dict.fromkeys(("asin", "name", "query", "product_category", "full_description", "small_description"), "x")
    product = read_product(texts | {"pricing": pricing, "customization_options": {}}, ["a"], {})
    assert (product.price_tag, product.price) == (tag, price)
