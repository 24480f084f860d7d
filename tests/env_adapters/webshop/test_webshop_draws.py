"""Draws of goals by seed: upstream's frequencies, and the ways to split."""

from collections import Counter
from math import prod
from pathlib import Path

import pytest

from env_adapters.webshop.draws import Draws, draws_of, weights
from env_adapters.webshop.goal import Goal
from env_adapters.webshop.records import SYNTHETIC, read_records
from env_adapters.webshop.shop import load_shop, open_shop


def upstream_weights(goals: list[Goal]) -> list[float]:
    """WebShop's frequencies, written down a second time from its description."""
    uses: dict[str, int] = {}
    for goal in goals:
        for attribute in goal.attributes:
            uses[attribute] = uses.get(attribute, 0) + 1
    found = []
    for goal in goals:
        shares = [1.0 / uses[attribute] for attribute in goal.attributes]
        found.append(sum(shares) / len(shares))
    return found


def test_every_combination_of_options_is_a_goal() -> None:
    shop = load_shop(SYNTHETIC)
    of_product = Counter(goal.product.asin for goals in shop.goals.values() for goal in goals)
    whole = [p for p in shop.products if "blueberry" not in str(p.options)]
    assert len(whole) > 900
    for product in whole:
        assert of_product[product.asin] == prod(len(values) for values in product.options.values())


def test_goals_are_drawn_with_upstreams_frequencies() -> None:
    shop = load_shop(SYNTHETIC)
    goals = sorted((goal for own in shop.goals.values() for goal in own), key=lambda goal: goal.task_id)
    expected = dict(zip((goal.task_id for goal in goals), upstream_weights(goals), strict=True))
    assert weights(goals) == pytest.approx(list(expected.values()))
    draws = Draws(shop, "none")
    drawn = [draws.goal_of(2 * number) for number in range(20_000)]
    # Compared by first attribute: of each single goal there are too few.
    total = sum(expected.values())
    shares: Counter[str] = Counter()
    for goal in goals:
        shares[goal.attributes[0]] += expected[goal.task_id] / total  # type: ignore[assignment]
    counts = Counter(goal.attributes[0] for goal in drawn)
    for attribute, share in shares.items():
        spread = (share * (1 - share) / len(drawn)) ** 0.5
        assert abs(counts[attribute] / len(drawn) - share) < 5 * spread, attribute
    assert draws.goal_of(6) is drawn[3], "the same seed, the same goal"


def test_the_weights_are_not_uniform() -> None:
    made = weights([goal for goals in load_shop(SYNTHETIC).goals.values() for goal in goals])
    assert max(made) > 1.5 * min(made)


def test_human_goals_weigh_one(human_folder: Path) -> None:
    shop = open_shop(read_records(human_folder), human=True)
    assert weights([goal for goals in shop.goals.values() for goal in goals]) == [1.0, 1.0, 1.0]


def test_the_splits() -> None:
    shop = load_shop(SYNTHETIC)
    everything = {goal.task_id for goals in shop.goals.values() for goal in goals}
    product, none, goal = (draws_of(shop, split_by) for split_by in ("product", "none", "goal"))
    products = [{goal.product.asin for goal in product.goals[split]} for split in ("train", "val")]
    assert not products[0] & products[1]
    assert all({goal.task_id for goal in none.goals[split]} == everything for split in ("train", "val"))
    names = [[one.task_id for one in goal.goals[split]] for split in ("train", "val")]
    assert len(names[1]) == 500 and set(names[0]) | set(names[1]) == everything and not set(names[0]) & set(names[1])
    assert [goal.goal_of(2 * number + 1).task_id for number in range(501)] == [*names[1], names[1][0]]
    assert product.goal_of(2**63 - 2) in product.goals["train"] and product.goal_of(1) in product.goals["val"]
    with pytest.raises(ValueError, match="unknown split_by 'seed'; known: product, none, goal"):
        Draws(shop, "seed")


def test_a_small_shop_has_no_goals_left_to_train_on(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"only 7 goals; with split_by='goal' 500 are held out"):
        Draws(open_shop(read_records(folder)), "goal")
