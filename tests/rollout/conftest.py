"""Agent loops without Ray: real environments and a small real tokenizer, everything else scripted."""

from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf
from scripted import MOVE_TURN, TOOL_TURN, ScriptedManager, ScriptedQueue, ScriptedServer, settings
from verl.experimental.agent_loop.agent_loop import DictConfigWrap

from env_adapters import make
from env_adapters.host import EnvironmentHost
from recipes.tiny_models.tokenizer import train_tokenizer
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA


@pytest.fixture(scope="session")
def tokenizer():
    environment = make("minihack", variant="room-ultimate", max_turns=4)
    observation, info = environment.reset(seed=0)
    environment.close()
    messages = [
        {"role": "system", "content": environment.instructions},
        {"role": "user", "content": f"{info['goal']}\n\nObservation:\n{observation}"},
        {"role": "assistant", "content": TOOL_TURN},
        {"role": "tool", "content": "Go to the staircase."},
        {"role": "assistant", "content": MOVE_TURN},
    ]
    return train_tokenizer([(messages, [SEARCH_AND_ASK_SCHEMA])] * 2, vocab_size=600)


@pytest.fixture
def queue() -> ScriptedQueue:
    """What the agent loops of ``make_loop`` report failed rollouts and recorded episodes to."""
    return ScriptedQueue()


@pytest.fixture
def make_loop(tokenizer, queue, monkeypatch):
    """Return a factory of agent loops that talk to a scripted server and a scripted manager."""
    from verl_comprl.rollout import agent_loop
    from verl_comprl.rollout.failures import FailureReporter
    from verl_comprl.rollout.guidance import Guidance
    from verl_comprl.rollout.recorder import EpisodeRecorder
    from verl_comprl.rollout.search_and_ask import SearchAndAskTool

    reporter = FailureReporter(queue.put)
    recorder = EpisodeRecorder(queue.put)

    def build(
        server: ScriptedServer,
        manager: ScriptedManager,
        *,
        reader: Any = tokenizer,
        model_type: str = "qwen3",
        **rollout: Any,
    ):
        guidance = Guidance(manager)
        tool = SearchAndAskTool(guidance=guidance)
        monkeypatch.setattr(agent_loop, "environment_host", cache(EnvironmentHost))
        monkeypatch.setattr(agent_loop, "failure_reporter", lambda: reporter)
        monkeypatch.setattr(agent_loop, "episode_recorder", lambda: recorder)
        monkeypatch.setattr(agent_loop, "guidance", lambda run: guidance)
        monkeypatch.setattr(agent_loop, "search_and_ask_tool", lambda run: tool)
        surroundings: dict[str, Any] = {"server_manager": server, "processor": None, "dataset_cls": None}
        return agent_loop.ComplementaryAgentLoop(
            trainer_config=settings(**rollout),
            tokenizer=reader,
            data_config=DictConfigWrap(OmegaConf.create({})),
            hf_model_type=model_type,
            **surroundings,
        )

    return build
