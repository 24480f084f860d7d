"""One episode: guidance, turns with the environment and the tool, and what is handed on.

The path of an episode, top to bottom: :meth:`ComplementaryAgentLoop.run` → guide → turns → (a) tokens and reward to verl,
(b) the episode to the experience manager. An error anywhere costs this rollout and nothing else.
"""

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.utils.profiler import simple_timer

from verl_comprl.experience.schema import DistillationRequest, Outcome, Turn
from verl_comprl.plugin import AGENT_LOOP
from verl_comprl.rollout.conversation import Conversation
from verl_comprl.rollout.environment_pool import EnvironmentPool, EnvironmentSession
from verl_comprl.rollout.guidance import Guidance, is_guided_slot
from verl_comprl.rollout.messages import initial_messages, observation_message
from verl_comprl.rollout.search_and_ask import SearchAndAskTool
from verl_comprl.service import EpisodeReport, Guide

logger = logging.getLogger(__name__)

EVALUATION_KEY = "comprl_evaluation"
"""Field that the trainer puts on every submitted prompt: whether it is evaluated or trained on."""


@dataclass
class _Episode:
    """What accumulates while an episode runs."""

    slot_guided: bool
    guide: Guide = field(default_factory=lambda: Guide("free"))
    turns: list[Turn] = field(default_factory=list)
    record_ids: list[str] = field(default_factory=list)
    tool_calls: int = 0
    invalid_actions: int = 0
    reward: float = 0.0
    info: dict[str, Any] = field(default_factory=dict)

    @property
    def guided(self) -> bool:
        """A guided slot that got nothing is trained as free."""
        return self.guide.text is not None


class _Shared:
    """What the episodes of one worker process share."""

    environments: EnvironmentPool | None = None
    tool: SearchAndAskTool | None = None
    guidance: Guidance | None = None
    failures = 0


@register(AGENT_LOOP)
class ComplementaryAgentLoop(AgentLoopBase):
    """verl agent loop: a multi-turn episode that may be guided by experience."""

    def __init__(self, *args: Any, tools: Any = None, **kwargs: Any) -> None:
        """Take verl's arguments; the tool is our own, tools of the worker are not offered."""
        super().__init__(*args, **kwargs)
        self._settings = self.config.comprl
        self._parser = ToolParser.get_tool_parser(self.rollout_config.multi_turn.format, self.tokenizer)
        if _Shared.environments is None:
            _Shared.environments = EnvironmentPool()
            _Shared.guidance = Guidance.connect()
            _Shared.tool = SearchAndAskTool()
        self._environments, self._guidance, self._tool = _Shared.environments, _Shared.guidance, _Shared.tool

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one episode of a dataset row.

        Args:
            sampling_params: The actor's sampling parameters.
            **row: The row's columns, with ``uid``, ``session_id`` and ``global_steps`` of verl.

        Returns:
            The episode's tokens and reward; an empty list if it failed, so that only this rollout is missing.
        """
        try:
            return await self._run(sampling_params, row)
        except Exception as error:
            _Shared.failures += 1
            if _Shared.failures == 1:
                logger.exception("a rollout failed and is left out (further ones are counted only): %s", error)
            return []

    async def _run(self, sampling_params: dict[str, Any], row: dict[str, Any]) -> AgentLoopOutput:
        extra = row["extra_info"]
        evaluation = bool(row.get(EVALUATION_KEY, False))
        group_size = self.rollout_config.val_kwargs.n if evaluation else self.rollout_config.n
        # Evaluation always has both arms; warm-up is about training only.
        step, fraction = int(row["global_steps"]), self._settings.guided_fraction
        if evaluation:
            step, fraction = self._settings.warmup_steps + 1, 0.5
        guided = is_guided_slot(int(row["session_id"]), group_size, fraction, step, self._settings.warmup_steps)
        episode = _Episode(slot_guided=guided)
        timing: dict[str, float] = {}
        options = json.loads(extra["environment_options"])
        async with self._environments.session(extra["environment"], options) as environment:
            observation, episode.info = await environment.reset(int(extra["seed"]))
            if guided:
                with simple_timer("guide", timing):
                    episode.guide = await self._guidance.guide(
                        episode.info["goal"],
                        task=row["data_source"],
                        environment=extra["environment"],
                        read_only=evaluation,
                    )
                if episode.guide.record_id:
                    episode.record_ids.append(episode.guide.record_id)
            conversation = await self._begin(row, episode, observation)
            await self._play(conversation, environment, episode, observation, sampling_params, row, evaluation, timing)
        if not evaluation:
            await self._report(row, episode)
        return self._output(conversation, episode, timing)

    async def _begin(self, row: dict[str, Any], episode: _Episode, observation: str) -> Conversation:
        # The free half has neither entry nor tool: it must not read the bank.
        offers_tool = episode.guided and self._settings.search_and_ask.max_calls > 0
        tools = [self._tool.tool_schema.model_dump(exclude_unset=True, exclude_none=True)] if offers_tool else None
        request_id = f"{row['uid']}_{row['session_id']}"
        conversation = Conversation(self, request_id, self.rollout_config.response_length, tools)
        await conversation.begin(initial_messages(row["raw_prompt"], observation, episode.guide.text))
        return conversation

    async def _play(
        self,
        conversation: Conversation,
        environment: EnvironmentSession,
        episode: _Episode,
        observation: str,
        sampling_params: dict[str, Any],
        row: dict[str, Any],
        evaluation: bool,
        timing: dict[str, float],
    ) -> None:
        """Alternate between actor and environment until the episode ends or no further turn fits."""
        while True:
            with simple_timer("generate_sequences", timing):
                text = await conversation.generate(sampling_params, self._settings.max_turn_tokens)
            call = await self._tool_call(conversation, episode)
            if call is not None:
                with simple_timer("tool_calls", timing):
                    reply = await self._ask(call, episode, row, evaluation)
                if not await conversation.append({"role": "tool", "content": reply}):
                    return
                continue
            before = observation
            observation, reward, terminated, truncated, episode.info = await environment.step(text)
            episode.turns.append(Turn(observation=before, response=text))
            episode.reward += reward
            episode.invalid_actions += not episode.info["action_valid"]
            if terminated or truncated or not await conversation.append(observation_message(observation)):
                return

    async def _tool_call(self, conversation: Conversation, episode: _Episode) -> FunctionCall | None:
        """Return the tool call of the last turn, if the actor may make one."""
        if not episode.guided or episode.tool_calls >= self._settings.search_and_ask.max_calls:
            return None
        text = conversation.messages[-1]["content"]
        if "<tool_call>" not in text:
            return None
        _, calls = await self._parser.extract_tool_calls(conversation.last_turn_ids)
        return calls[0] if calls else None

    async def _ask(self, call: FunctionCall, episode: _Episode, row: dict[str, Any], evaluation: bool) -> str:
        episode.tool_calls += 1
        if call.name != self._tool.name:
            return f"Unknown tool {call.name!r}; the only one is {self._tool.name}."
        arguments = json.loads(call.arguments)
        if not isinstance(arguments, dict):
            return 'Arguments must be a JSON object with the key "query".'
        response, _, details = await self._tool.execute(
            "",
            arguments,
            task=row["data_source"],
            environment=row["extra_info"]["environment"],
            read_only=evaluation,
        )
        if details["record_id"]:
            episode.record_ids.append(details["record_id"])
        return response.text or ""

    async def _report(self, row: dict[str, Any], episode: _Episode) -> None:
        guides = (episode.guide.experience_id,) if episode.guide.experience_id else ()
        request = DistillationRequest(
            id=f"{row['uid']}_{row['session_id']}",
            task=row["data_source"],
            environment=row["extra_info"]["environment"],
            goal=episode.info["goal"],
            turns=tuple(episode.turns),
            outcome=Outcome(success=bool(episode.info["success"]), score=float(episode.info["score"])),
            experience_ids=guides,
            step=int(row["global_steps"]),
        )
        await self._guidance.report(EpisodeReport(request, episode.guided, tuple(episode.record_ids)))

    def _output(self, conversation: Conversation, episode: _Episode, timing: dict[str, float]) -> AgentLoopOutput:
        details = {
            "guided": float(episode.guided),
            "slot_guided": float(episode.slot_guided),
            "success": float(episode.info["success"]),
            "score": float(episode.info["score"]),
            "actions": float(len(episode.turns)),
            "invalid_actions": float(episode.invalid_actions),
            "tool_calls": float(episode.tool_calls),
            "degraded": float(episode.guide.status == "degraded"),
        }
        return AgentLoopOutput(
            prompt_ids=conversation.prompt_ids,
            response_ids=conversation.response_ids,
            response_mask=conversation.mask,
            response_logprobs=conversation.log_probs or None,
            reward_score=episode.reward,
            num_turns=len(conversation.messages),
            metrics=AgentLoopMetrics(**timing),
            extra_fields={
                "min_global_steps": min(conversation.weight_versions),
                "max_global_steps": max(conversation.weight_versions),
                "reward_extra_info": details,
            },
        )
