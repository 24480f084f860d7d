"""WebShop's scripted buyer."""

from dataclasses import replace

import pytest

import env_adapters
from env_adapters.webshop.expert import ScriptedPolicy
from env_adapters.webshop.shop import load_shop


def test_it_earns_the_full_reward_on_every_twentieth_goal() -> None:
    options = {"data": "synthetic", "reward": "graded", "split_by": "goal", "max_turns": 15}
    environment = env_adapters.make("webshop", **options)
    for side, split in enumerate(("train", "val")):
        for number in range(0, len(environment.draws.goals[split]), 20):  # type: ignore[attr-defined]
            _, info = environment.reset(seed=2 * number + side)
            policy = ScriptedPolicy(environment.target)  # type: ignore[attr-defined]
            terminated = truncated = False
            reward = 0.0
            while not (terminated or truncated):
                assert reward == 0
                action = policy.act(info["admissible_actions"])
                _, reward, terminated, truncated, info = environment.step(f"<action>{action}</action>")
                assert info["action_valid"]
            assert (reward, info["success"], info["score"]) == (1.0, True, 1.0)


def test_a_goal_that_cannot_be_reached_is_refused() -> None:
    goal = load_shop("synthetic").goals["train"][0]
    with pytest.raises(ValueError, match=f"{goal.task_id}.* cannot be reached"):
        ScriptedPolicy(replace(goal, price_upper=0.5))
