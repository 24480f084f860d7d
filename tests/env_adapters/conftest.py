"""Fixtures shared by the tests of all environment families."""

import json
from collections.abc import Callable
from typing import Any

import pytest

import env_adapters

Row = dict[str, Any]


@pytest.fixture
def expected_row() -> Callable[..., Row]:
    """Return a function that makes the expected row of a held-out episode from a running environment."""

    def make(name: str, data_source: str, options: dict[str, Any], *, seed: int, index: int) -> Row:
        environment = env_adapters.make(name, **options)
        _, info = environment.reset(seed=seed)
        row = {
            "data_source": data_source,
            "prompt": [
                {"role": "system", "content": environment.instructions},
                {"role": "user", "content": environment.goal},
            ],
            "ability": "agent",
            "reward_model": {"style": "environment", "ground_truth": ""},
            "agent_name": "comprl_agent",
            "extra_info": {
                "index": index,
                "split": "val",
                "environment": name,
                "environment_options": json.dumps(options),
                "seed": seed,
                "task_id": info["task_id"],
            },
        }
        assert f"{environment.max_turns} turns" in environment.instructions
        environment.close()
        return row

    return make
