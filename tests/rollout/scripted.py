"""Scripted server, experience manager and TransferQueue of an agent loop, and its settings."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import DictConfigWrap
from verl.workers.rollout.replica import TokenOutput

from env_adapters.minihack.dataset import build_rows
from verl_comprl.manager.messages import Answer, Guide
from verl_comprl.rollout.failures import PARTITION
from verl_comprl.rollout.recorder import FIELD, unpack
from verl_comprl.rollout.recorder import PARTITION as EPISODES

TOOL_TURN = (
    "<think>I am not sure.</think>\n<tool_call>\n"
    '{"name": "search_and_ask", "arguments": {"query": "Where do I go?"}}\n</tool_call>'
)
MOVE_TURN = "<think>It is there.</think>\n<action>move east</action>"
GUIDE = Guide("found", "Go straight\nStep on the staircase.", "entry-1", "record-1")
ANSWER = Answer("answered", "Walk east.", "record-2")


class ScriptedServer:
    """Answers each request with the next of the given turns; log-probs count down so that every one is different."""

    def __init__(self, tokenizer: Any, turns: list[str], *, cut_off: tuple[int, ...] = ()) -> None:
        self.tokenizer, self.turns, self.cut_off = tokenizer, list(turns), cut_off
        self.requests: list[dict[str, Any]] = []
        self.generated: list[list[int]] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> TokenOutput:
        index = len(self.requests)
        self.requests.append({"request_id": request_id, "prompt_ids": list(prompt_ids), **sampling_params})
        ids = self.tokenizer.encode(self.turns[index], add_special_tokens=False)
        if index not in self.cut_off:
            ids = [*ids, self.tokenizer.eos_token_id]
        ids = ids[: sampling_params["max_tokens"]]
        self.generated.append(ids)
        return TokenOutput(
            token_ids=ids,
            log_probs=[-(index + 1) - position / 100 for position in range(len(ids))],
            extra_fields={"min_global_steps": 3, "max_global_steps": 3 + index},
        )


class ScriptedManager:
    """The manager's Ray handle: ``handle.method.remote(...)`` returns an awaitable."""

    def __init__(self, guide: Guide | Exception, answer: Answer | Exception | None = None) -> None:
        self.calls: list[tuple[str, tuple, dict]] = []
        self.results = {"guide": guide, "search_and_ask": answer, "report": True}

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            self.calls.append((name, args, kwargs))
            result = self.results[name]
            if isinstance(result, Exception):
                raise result
            return result

        return SimpleNamespace(remote=call)


class ScriptedQueue:
    """Keeps tags of failed rollouts and records of episodes by key; raises ``failure`` instead, if it is set."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Any]] = {}
        self.episodes: dict[str, dict[str, Any]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        """Those of the episodes."""
        self.failure: Exception | None = None

    async def put(self, *, key: str, partition_id: str, tag: dict[str, Any], fields: Any = None) -> None:
        if self.failure:
            raise self.failure
        if partition_id == EPISODES:
            self.tags[key] = tag
            self.episodes[key] = json.loads(unpack(fields[FIELD]))
        else:
            assert partition_id == PARTITION
            self.sent[key] = tag


def settings(**rollout: Any) -> DictConfigWrap:
    config = OmegaConf.create(
        {
            "actor_rollout_ref": {
                "rollout": {
                    "n": 4,
                    "prompt_length": 2048,
                    "response_length": 2048,
                    "multi_turn": {"format": "hermes"},
                    "val_kwargs": {"n": 2},
                    **rollout,
                }
            },
            "trainer": {"default_local_dir": "run"},
            "comprl": {
                "experience": True,
                "guided_fraction": 0.5,
                "warmup_steps": 0,
                "max_turn_tokens": 64,
                "environments": {
                    "isolation": "auto",
                    "reset_timeout": 60,
                    "step_timeout": 60,
                    "episode_timeout": 60,
                    "max_idle": 4,
                },
                "search_and_ask": {"max_calls": 1},
                "actor_critic": {"enabled": False, "train": False, "timeout": 60.0, "max_tokens": 64},
                "self_distillation": {"weight": 0.0, "every": 1},
                "bank": {"path": "unused"},
                "queue": {"folder": "unused"},
            },
        }
    )
    return DictConfigWrap(config)


def change_settings(loop: Any, group: str, **values: Any) -> None:
    """Give an agent loop other settings than those of its config."""
    changed = getattr(loop._settings, group).model_copy(update=values)
    loop._settings = loop._settings.model_copy(update={group: changed})


def row(session_id: int, *, evaluation: bool = False, max_turns: int = 3, **changes):
    built = build_rows("room-ultimate", "train", 1, max_turns=max_turns)[0]
    built["raw_prompt"] = built.pop("prompt")
    columns = {"uid": "u", "session_id": session_id, "global_steps": 5, "comprl_evaluation": evaluation}
    return built | columns | changes


async def play(loop, **columns):
    return await loop.run({"temperature": 1.0}, **columns)


def call(name: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {{"query": "?"}}}}\n</tool_call>'


def unfinished(session_id: int, name: str = "Unfinished") -> dict:
    columns = row(session_id)
    extra = {"environment": f"own_environments:{name}", "environment_options": "{}"}
    return columns | {"extra_info": columns["extra_info"] | extra}
