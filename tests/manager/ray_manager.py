"""The manager as a real Ray actor, without the models that it would load."""

import os
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def start_ray() -> None:
    """Start a Ray of one's own, whose processes find the modules of the tests."""
    import ray

    tests = (ROOT, *(ROOT / name for name in ("tests", "tests/experience", "tests/manager")))
    environment = {"env_vars": {"PYTHONPATH": os.pathsep.join(map(str, tests))}}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env=environment)


def manager_class() -> Any:
    """Return a class of managers with a fast embedder and a tokenizer of characters."""
    from verl_comprl.manager import actor

    class Manager(actor._ManagerActor):
        async def load(self, *_: Any) -> None:
            from conftest import CharacterTokenizer  # pyright: ignore[reportAttributeAccessIssue]
            from fake_embedder import FakeEmbedder  # pyright: ignore[reportMissingImports]

            self._embedder, self._tokenizer = FakeEmbedder(), None
            actor.load_tokenizer = lambda _: CharacterTokenizer()

    return Manager
