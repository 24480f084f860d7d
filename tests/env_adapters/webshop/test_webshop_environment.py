"""WebShop episodes: navigation, hostile text, determinism, reward."""

import json
import random
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import env_adapters
from env_adapters import INFO_KEYS
from env_adapters.webshop.environment import WebShopEnvironment

ROOT = Path(__file__).parents[3]
EPISODES = """
import hashlib, random, sys
import env_adapters
environment = env_adapters.make("webshop", data="synthetic")
digest = hashlib.sha256()
for seed in range(40):
    observation, info = environment.reset(seed=seed)
    actions = random.Random(seed)
    over = False
    while not over:
        action = actions.choice(info["admissible_actions"]).replace("<query>", info["goal"])
        digest.update(observation.encode())
        observation, reward, terminated, truncated, info = environment.step(action)
        over = terminated or truncated
    digest.update(f"{observation}{reward}{info}".encode())
print(digest.hexdigest())
"""


def make(**options: object) -> WebShopEnvironment:
    environment = env_adapters.make("webshop", **{"data": "synthetic", **options})
    assert isinstance(environment, WebShopEnvironment)
    return environment


@pytest.fixture
def scarves(folder: Path) -> Iterator[WebShopEnvironment]:
    """The small shop, with the wool scarf as the goal."""
    environment = make(data=str(folder))
    seed = next(seed for seed in range(99) if "wool" in environment.draws.goal_of(seed).instruction)
    environment.reset(seed=seed)
    yield environment
    environment.close()


def play(environment: WebShopEnvironment, *actions: str) -> tuple[str, float, bool, dict]:
    observation, reward, over, info = "", 0.0, False, {}
    for action in actions:
        observation, reward, terminated, truncated, info = environment.step(
            f"<think>..</think><action>{action}</action>"
        )
        assert info["action_valid"] and info.keys() == INFO_KEYS
        over = terminated or truncated
    return observation, reward, over, info


def test_the_first_page_shows_the_goal_and_the_prompt_the_rules() -> None:
    environment = make()
    observation, info = environment.reset(seed=0)
    assert observation == f"WebShop\nInstruction: \n{info['goal']}\n[button] Search [button_]"
    assert info["admissible_actions"] == ["search[<query>]"] and info["goal"] == environment.goal
    assert info["task_id"].startswith("webshop/") and not info["success"]
    for words in ("30 turns", "[clicked button]", "search[", "click[Buy Now]", "<action> </action>"):
        assert words in environment.instructions
    assert "[SEP]" in make(observation_mode="text").instructions


def test_the_way_to_a_full_reward(scarves: WebShopEnvironment) -> None:
    observation, *_ = play(scarves, "search[wool scarf]")
    assert "Page 1 (Total results: 3)" in observation and observation.index("A000000001") < observation.index(
        "A000000002"
    )
    play(scarves, "click[A000000001]")
    for _, value in scarves.target.options:
        observation, *_ = play(scarves, f"click[{value}]")
        assert f"[clicked button] {value} [clicked button_]" in observation
    observation, reward, over, info = play(scarves, "click[Buy Now]")
    assert observation == "Thank you for shopping with us!\nYour score (min 0.0, max 1.0)\n1.0"
    assert (reward, over, info["success"], info["score"], info["admissible_actions"]) == (1.0, True, True, 1.0, [])


def test_a_partial_purchase_is_worth_nothing_or_its_grade(scarves: WebShopEnvironment) -> None:
    graded = make(data=scarves.data, reward="graded")
    graded.reset(seed=next(seed for seed in range(99) if graded.draws.goal_of(seed) is scarves.target))
    for environment, worth in ((scarves, 0.0), (graded, 0.5)):
        *_, reward, over, info = play(environment, "search[wool scarf]", "click[a000000001]", "click[buy now]")
        assert (reward, over, info["success"], info["score"]) == (worth, True, False, 0.5)


def test_options_are_kept_on_sub_pages_and_reset_in_the_results(scarves: WebShopEnvironment) -> None:
    play(scarves, "search[wool]", "click[A000000001]", "click[red]", "click[long]")
    observation, *_ = play(scarves, "click[Features]")
    assert observation.endswith("[button] < Prev [button_]\n Soft to the touch\n Knitted in one piece")
    observation, *_ = play(scarves, "click[< Prev]")
    assert observation.startswith("You have clicked long.\nYou have clicked red.\nInstruction:")
    observation, *_ = play(scarves, "click[navy | white]")
    assert observation.startswith("You have clicked long.\nYou have clicked navy | white.\n")
    observation, *_ = play(scarves, "click[< prev]")
    assert "[clicked button] A000000001 [clicked button_]" in observation
    assert "You have clicked" not in play(scarves, "click[A000000001]")[0]
    observation, *_ = play(scarves, "click[back to search]", "search[wool]")
    assert "[button] A000000001 [button_]" in observation


def test_options_with_the_names_of_buttons(folder: Path) -> None:
    products = json.loads((folder / "items_shuffle_1000.json").read_text())
    values = ["Next >", "Features", "Search", "[2 Pack]", "Red"]
    products[0]["customization_options"] = {"Style": [{"value": value} for value in values], "Trim": [{"value": "Red"}]}
    (folder / "items_shuffle_1000.json").write_text(json.dumps(products))
    environment = make(data=str(folder))
    environment.reset(seed=0)
    play(environment, "search[wool]", "click[A000000001]")
    for value in ("next >", "search", "[2 pack]"):
        assert play(environment, f"click[{value}]")[0].startswith(f"You have clicked {value}.\n")
    assert "Soft to the touch" in play(environment, "click[features]")[0]
    observation, *_ = play(environment, "click[< prev]", "click[red]")
    assert observation.startswith(
        "You have clicked red.\nYou have clicked [2 pack].\n"
    )  # the last option that has this value


def test_an_action_that_changes_nothing_is_valid_without_effect(scarves: WebShopEnvironment) -> None:
    *_, info = play(scarves, "search[wool]", "click[A000000001]", "click[red]")
    assert info["action_effective"]
    *_, info = play(scarves, "click[RED]")
    assert not info["action_effective"]


def test_pages_beyond_the_results_are_empty() -> None:
    environment = make(max_turns=100)
    environment.reset(seed=0)
    observation, *_ = play(environment, "search[women's shoes with arch support]")
    assert "Page 1 (Total results: 50)" in observation
    seen: set[str] = set()
    for page in range(2, 30):
        observation, *_, info = play(environment, "click[Next >]")
        shown = {action for action in info["admissible_actions"] if action.startswith("click[w")}
        assert f"Page {page} (Total results: 50)" in observation
        assert len(shown) == (10 if page <= 5 else 0) and not shown & seen
        seen |= shown
    play(environment, *["click[< Prev]"] * 28)
    assert not environment.step("click[< Prev]")[-1]["action_valid"]


@pytest.mark.parametrize("query", ["zzzz", "the", "\x00\x1b[2J", "\udcff", "[]", "a" * 1_000_000, "日本 🐉"])
def test_a_search_without_hits_shows_an_empty_page(query: str) -> None:
    environment = make()
    environment.reset(seed=0)
    observation, *_, info = play(environment, f"search[{query}]")
    assert "Page 1 (Total results: 0)" in observation and len(observation) < 1000
    assert info["admissible_actions"] == ["click[back to search]", "click[next >]"]


def hostile(count: int) -> list[str]:
    fixed = [
        "",
        " ",
        "\x00",
        "\udcff\ud800",
        "search",
        "search[",
        "search[]",
        "search[ \n ]",
        "[search[red]",
        "search red",
        "click[search]",
        "click[buy now]",
        "click[w00000]",
        "click[]",
        "click[" * 200_000,
        "[" * 1_000_000,
        "]" * 1_000_000,
        "click[" + "a" * 1_000_000 + "]",
        "<action>" * 125_000,
        "<action></action>",
        "<action>search[red]</action></think>",
        "<action>search[red] or click[x]</action> no",
        '{"action": "search[red]"}',
        json.dumps({"name": "search", "arguments": {"query": "red"}}),
        "__import__('os')._exit(1)",
        "%s%n{0}{info}",
    ]
    chosen = random.Random(0)
    alphabet = [chr(code) for code in (*range(0, 300), 0x2028, 0xD800, 0x1F409)] + ["<action>", "</action>", "click["]
    return fixed + ["".join(chosen.choices(alphabet, k=chosen.randrange(1, 200))) for _ in range(count - len(fixed))]


def test_no_invalid_text_breaks_a_step_or_leaves_the_page() -> None:
    environment = make(max_turns=1000)
    first, _ = environment.reset(seed=3)
    tracemalloc.start()
    for text in hostile(300):
        if text == "<action>search[red] or click[x]</action> no":
            continue  # this one is a valid search
        observation, reward, terminated, truncated, info = environment.step(text)
        assert (reward, terminated, truncated, info["action_valid"]) == (0.0, False, False, False)
        assert observation.startswith("Invalid action") and observation.endswith(first) and len(observation) < 1000
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 200_000
    play(environment, "search[red] or click[x]")


def test_search_is_valid_on_the_search_page_only(scarves: WebShopEnvironment) -> None:
    play(scarves, "search[wool]")
    observation, *_, info = scarves.step("<action>search[silk]</action>")
    assert not info["action_valid"] and "click[back to search]" in observation
    play(scarves, "click[ back   to search ]", "SEARCH[silk]", "click[A000000003]", "click[description]")


def test_the_turn_limit_truncates_without_a_score() -> None:
    environment = make(max_turns=2)
    environment.reset(seed=0)
    environment.step("search[red]")
    assert environment.step("nonsense")[1:4] == (0.0, False, True)
    assert environment.step("click[back to search]")[0] == "The episode is over."


def test_two_processes_see_the_same_episodes() -> None:
    command = [sys.executable, "-c", EPISODES]
    first, second = (subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True) for _ in range(2))
    assert first.stdout == second.stdout and len(first.stdout) == 65


def test_episodes_in_threads_equal_sequential_ones() -> None:
    def episode(seed: int) -> list[str]:
        environment = make()
        observations = [environment.reset(seed=seed)[0]]
        actions = random.Random(seed)
        for _ in range(30):
            action = actions.choice(environment.admissible_actions or ["-"]).replace("<query>", environment.goal)
            observations.append(environment.step(action)[0])
        return observations

    alone = [episode(seed) for seed in range(16)]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(episode, range(16))) == alone


def test_instances_share_the_shop_and_keep_nothing_from_the_episode_before() -> None:
    one, other = make(), make(observation_mode="text")
    assert one.shop is other.shop
    fresh, _ = one.reset(seed=5)
    one.reset(seed=6)
    play(one, "search[red]", "click[next >]")
    assert one.reset(seed=5)[0] == fresh


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ValueError, match="observation_mode 'html'; known: text, text_rich"):
        make(observation_mode="html")
    with pytest.raises(ValueError, match="reward 'dense'; known: binary, graded"):
        make(reward="dense")
    with pytest.raises(ValueError, match="no reset option 'session'"):
        make().reset(seed=0, options={"session": 2})
