"""WebShop's reward formula, compared with a second implementation and with cases worked out by hand."""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from env_adapters.webshop.goal import Goal
from env_adapters.webshop.product import Product, read_product
from env_adapters.webshop.records import SYNTHETIC
from env_adapters.webshop.reward import _COLORS, grade, has_attribute, meets_option, type_factor
from env_adapters.webshop.shop import load_shop
from env_adapters.webshop.solution import solve


def make(name: str, **fields: object) -> Product:
    record = {
        "asin": "X",
        "name": name,
        "query": "q",
        "product_category": "a \u203a b",
        "full_description": "",
        "small_description": [],
        "customization_options": None,
        "pricing": "$10.00",
    }
    return replace(read_product(record, [], {}), **fields)


def common_length(first: str, second: str) -> int:
    """Return the length of the longest common subsequence."""
    row = [0] * (len(second) + 1)
    for letter in first:
        before = row
        row = [0]
        for position, other in enumerate(second):
            row.append(before[position] + 1 if letter == other else max(before[position + 1], row[-1]))
    return row[-1]


def ratio(first: str, second: str) -> int:
    return round(200 * common_length(first, second) / (len(first) + len(second))) if first and second else 0


def token_set_ratio(first: str, second: str) -> int:
    one, two = (set(re.findall(r"\w+", text.lower())) for text in (first, second))
    both = " ".join(sorted(one & two))
    left, right = (" ".join(filter(None, [both, " ".join(sorted(rest))])) for rest in (one - two, two - one))
    return max(ratio(both, left), ratio(both, right), ratio(left, right))


def color(value: str) -> str:
    found = [name for name in _COLORS if value.find(name) >= 0]
    return found[0] if found else value


def expected(product: Product, values: Sequence[str], goal: Goal) -> float:
    """Second implementation of the formula."""
    met = 0
    for attribute in goal.attributes:
        alike = [own for own in product.attributes if token_set_ratio(own, attribute) > 85]
        texts = (product.title + "\n" + " ".join(product.features) + "\n" + product.description).lower()
        met += bool(alike) or attribute in texts
    for name, value in goal.options:
        wanted = color(value) if name is None else f"{name} {value}"
        if name is not None and {name, value} & set(_COLORS):
            wanted = sorted({name, value} & set(_COLORS))[0]
        met += any(token_set_ratio(color(own), wanted) > 85 for own in values)
    met += product.price <= goal.price_upper
    overlap = len({*product.type_words} & {*goal.product.type_words}) / len(goal.product.type_words)
    kind = 1.0
    if product.query != goal.product.query and len(product.categories & goal.product.categories) < 2 and overlap <= 0.2:
        kind = 0.5
    if overlap < 0.1:
        kind = 0.1 if overlap > 0 else 0.0
    return kind * met / (len(goal.attributes) + len(goal.options) + 1)


def test_grades_in_the_synthetic_shop_agree_with_the_second_implementation() -> None:
    shop = load_shop(SYNTHETIC)
    chosen = random.Random(0)
    grades = []
    for _ in range(1500):
        goal = chosen.choice(shop.goals["train"])
        if chosen.random() < 0.3:
            goal = replace(goal, options=tuple((None, value) for _, value in goal.options))
        kin = [own for own in shop.products if own.query == goal.product.query]
        product = chosen.choice(kin if chosen.random() < 0.8 else shop.products)
        values = [chosen.choice(values) for values in product.options.values() if chosen.random() < 0.8]
        grades.append(grade(product, values, goal))
        assert grades[-1] == pytest.approx(expected(product, values, goal))
    assert {0.0, 1.0} < set(grades) and len(set(grades)) > 8


GOAL = Goal("t", "i", make("Fern Wool Scarf"), ("warm", "hand wash"), (("color", "red"), ("size", "large")), 20.0)
GOOD = make("Fern Wool Scarf", attributes=("warm", "hand washed"))


@pytest.mark.parametrize(
    ("product", "values", "reward"),
    [
        (GOOD, ["red", "large"], 1.0),
        (GOOD, ["red", "x-large"], 4 / 5),
        (GOOD, ["red", "small"], 4 / 5),
        (GOOD, [], 3 / 5),
        (GOOD, ["dark red", "large"], 4 / 5),  # taken for dark, the first color in the list
        (replace(GOOD, price=20.0), ["red", "large"], 1.0),
        (replace(GOOD, price=20.01), ["red", "large"], 4 / 5),
        (replace(GOOD, attributes=()), ["red", "large"], 3 / 5),
        (replace(GOOD, attributes=(), description="WARM, and hand wash only"), ["red", "large"], 1.0),
        (replace(GOOD, type_words=("tea", "scarf")), ["red", "large"], 1.0),
        (replace(GOOD, type_words=("tea",)), ["red", "large"], 0.0),
    ],
)
def test_the_reward_of_a_purchase(product: Product, values: list[str], reward: float) -> None:
    assert grade(product, values, GOAL) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("bought", "query", "categories", "factor"),
    [
        ("one", "q", "c", 1.0),
        ("one", "r", "ab", 1.0),
        ("one", "r", "ac", 0.5),
        ("one two", "r", "c", 0.5),
        ("one two three", "r", "c", 1.0),
        ("none", "q", "ab", 0.0),
    ],
)
def test_the_type_factor_for_a_title_of_ten_words(bought: str, query: str, categories: str, factor: float) -> None:
    wanted = make("one two three four five six seven eight nine ten")
    product = make(bought, query=query, categories=frozenset(categories))
    assert type_factor(product, wanted) == factor
    longer = make("one two three four five six seven eight nine ten eleven")
    assert type_factor(make("one"), longer) == 0.1


def test_the_type_factor_for_a_title_without_words_depends_on_the_query() -> None:
    assert type_factor(make("tea", query="r", categories=frozenset()), make("12 34")) == 0.5
    assert type_factor(make("tea"), make("12 34")) == 1.0


def test_upstreams_mistakes_are_kept() -> None:
    assert not meets_option("blueberry", "flavor", "blueberry")  # taken for blue
    assert meets_option("blueberry", None, "blueberry")
    assert meets_option("6", "size", "6.5") and not meets_option("6.5", "size", "6")
    assert meets_option("large", "size", "x-large") and meets_option("x-large", None, "large")
    assert meets_option("size", "size", "large")
    assert has_attribute(make("x", attributes=("caf\xe9 style",)), "caf style")


def test_a_solution_has_one_value_for_each_option_and_prefers_the_one_asked_for() -> None:
    names = {"red": "color", "dark blue": "color", "red wine": "style", "x-large": "size", "large": "size"}
    product = make("Scarf", attributes=("warm",), option_names=names)
    goal = Goal("t", "i", product, ("warm",), ((None, "red"), (None, "large")), 20.0)
    assert solve(goal) == {"color": "red", "size": "large"}
    both = replace(goal, options=((None, "red"), (None, "blue")))
    assert solve(both) == {"style": "red wine", "color": "dark blue"}
    assert solve(replace(goal, options=((None, "x-large"), (None, "petite")))) is None
    assert solve(replace(goal, attributes=("cold",))) is None
    assert solve(replace(goal, price_upper=9.0)) is None
    one = replace(product, option_names={"red": "color", "dark blue": "color"})
    assert solve(replace(both, product=one)) is None


@given(st.text(), st.text(), st.one_of(st.none(), st.text()))
def test_any_texts_can_be_compared(value: str, wanted: str, name: str | None) -> None:
    assert meets_option(value, name, wanted) in (True, False)
    if name is None:
        assert meets_option(wanted, None, value) == meets_option(value, None, wanted)
