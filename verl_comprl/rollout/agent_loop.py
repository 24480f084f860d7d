"""Agent loop that plays one episode for verl.

In order: guide, critic, turns with environment and tool, then tokens and reward to verl and the episode to the
experience manager. An error costs this rollout and nothing else; :mod:`verl_comprl.errors` describes the failure model.
"""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple, cast

from cachetools import LRUCache
from omegaconf import DictConfig, OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register
from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.utils.profiler import simple_timer

from env_adapters.host import EnvironmentHost, Limits, Session
from verl_comprl.config.reading import comprl_config
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.errors import Boundary, failing_at
from verl_comprl.experience.schema import Turn
from verl_comprl.experience.updates.sanitize import cap_tokens
from verl_comprl.manager.messages import Answer, Judgement
from verl_comprl.names import AGENT_LOOP
from verl_comprl.platform.garbage import relieve_garbage_collector
from verl_comprl.platform.pauses import episode_clock
from verl_comprl.platform.under_way import doing
from verl_comprl.rollout.conversation import Conversation
from verl_comprl.rollout.critic import judging_messages, read_judgement
from verl_comprl.rollout.episode import EVALUATION_KEY, OUTPUT_KEY, TASK_KEY, TIMERS, UNREAD, Episode, OutputKind
from verl_comprl.rollout.failures import FailureReporter
from verl_comprl.rollout.guidance import Guidance, is_guided_slot
from verl_comprl.rollout.messages import initial_messages, observation_message
from verl_comprl.rollout.recorder import EpisodeRecorder
from verl_comprl.rollout.search_and_ask import SearchAndAskTool
from verl_comprl.rollout.traces import Traces
from verl_comprl.untrusted import CHARACTERS_PER_TOKEN

logger = logging.getLogger(__name__)

CUT_MARK = " …"
_SPARE_TOKENS = 8
"""For the mark, and since a text's tokens need not be as many in a prompt as alone."""

# One of each per worker process: verl makes a new agent loop for every episode.
environment_host = cache(EnvironmentHost)
guidance = cache(Guidance.connect)
failure_reporter = cache(FailureReporter)
episode_recorder = cache(EpisodeRecorder)
traces = cache(Traces)
relieve_garbage_collector_once = cache(relieve_garbage_collector)  # when all libraries have been loaded


_TAGGED_FORMATS = ("hermes", "qwen3_coder", "glm")
"""Formats of tool calls whose parsers find nothing in a text without ``<tool_call>``."""


@cache
def search_and_ask_tool(run: str) -> SearchAndAskTool:
    """Return the tool that asks the manager of ``run``."""
    return SearchAndAskTool(guidance=guidance(run))


class _Settings(NamedTuple):
    """What agent loops read of a config."""

    config: DictConfig
    """The whole, kept so that its id stays its own."""
    rollout: DictConfig
    """Without interpolations: OmegaConf parses them at every access, which took a third of an episode's own time."""
    comprl: ComprlConfig
    run: str
    """The run's folder."""


_settings_by_config: dict[int, _Settings] = {}


def _settings(config: DictConfig) -> _Settings:
    """Read the settings once per worker: verl makes an agent loop for every episode, from one config object."""
    if id(config) not in _settings_by_config:
        rollout = OmegaConf.create(OmegaConf.to_container(config.actor_rollout_ref.rollout, resolve=True))
        run = str(config.trainer.default_local_dir)
        _settings_by_config[id(config)] = _Settings(config, cast(DictConfig, rollout), comprl_config(config), run)
    return _settings_by_config[id(config)]


@cache
def _warn_of_long_prompts(limit: int) -> None:
    """Tell of the first prompt of this worker that is too long; the metric counts all of them."""
    logger.warning(
        "a prompt has more than data.max_prompt_length=%d tokens, so the end of its entry is cut or, where that cannot "
        "help, the beginning of the rules; raise it (further prompts are counted: comprl/*/cut_prompts)",
        limit,
    )


_lengths: LRUCache[str, int] = LRUCache(4096)
"""Tokens of texts of the bank; a worker has one tokenizer."""


@contextmanager
def _part(episode: Episode, name: str) -> Iterator[None]:
    """Time a part of the episode, and let it be seen meanwhile."""
    with doing(name), simple_timer(TIMERS.get(name, name), episode.timing):
        yield


@contextmanager
def _acting(episode: Episode) -> Iterator[None]:
    """Time what the environment does, which is to blame for an error."""
    with failing_at(Boundary.ENVIRONMENT), _part(episode, "environment"):
        yield


@register(AGENT_LOOP)
class ComplementaryAgentLoop(AgentLoopBase):
    """verl agent loop: a multi-turn episode that may be guided by experience."""

    def __init__(self, *args: Any, tools: Any = None, **kwargs: Any) -> None:
        """Take verl's arguments; ``search_and_ask`` is the only tool, those of the worker are not offered."""
        super().__init__(*args, **kwargs)
        relieve_garbage_collector_once()
        _, self.rollout_config, self._settings, self._run = _settings(self.config)
        self._parser = ToolParser.get_tool_parser(self.rollout_config.multi_turn.format, self.tokenizer)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Play one episode of a dataset row.

        Args:
            sampling_params: The actor's sampling parameters.
            **row: The row's columns, with ``uid``, ``session_id`` and ``global_steps`` of verl.

        Returns:
            The episode's tokens and reward; an empty list if it failed, so that only this rollout is missing.
        """
        episode, outputs, failure = None, [], None
        try:
            # Guided or free is fixed before anything is retrieved or played, so that the halves differ in nothing else.
            episode = Episode(row, slot_guided=self._is_guided_slot(row))
            with traces().episode(row), failing_at(Boundary.ROLLOUT):
                outputs = await self._play_episode(episode, sampling_params)
        except Exception as error:
            # Before the return: verl may count the prompt as finished after it, and the trainer ends the step.
            failure = await failure_reporter().report(row, error)
        if self._settings.record.enabled:
            await episode_recorder().record(row, episode, self.tokenizer, failure)
        return outputs

    async def _play_episode(
        self, episode: Episode, sampling_params: dict[str, Any]
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        name, options = episode.environment, episode.environment_options
        with failing_at(Boundary.ENVIRONMENT), doing("environment"):
            async with self._environments().session(name, options) as environment:
                with failing_at(Boundary.ROLLOUT), doing("between turns"):
                    outputs, conversation = await self._play(episode, environment, sampling_params)
        if self._is_to_be_distilled(episode):
            outputs.append(await self._without_experience(episode, conversation))
        if self._settings.experience and not episode.evaluation:
            with _part(episode, "report"):
                episode.reported = await guidance(self._run).report(episode.report())
        episode.tokens.update(prompt=len(conversation.prompt_ids), generated=sum(conversation.mask))
        # The episode comes last: verl takes outcome and metrics from the last output and gives them to the others.
        outputs.append(_output(conversation, OutputKind.EPISODE, episode, reward=episode.reward))
        return outputs if len(outputs) > 1 else outputs[0]

    async def _play(
        self, episode: Episode, environment: Session, sampling_params: dict[str, Any]
    ) -> tuple[list[AgentLoopOutput], Conversation]:
        """Play from reset to the end; returns what the critic's turn adds to the outputs, and the conversation."""
        outputs: list[AgentLoopOutput] = []
        with _acting(episode):
            observation, episode.info = await environment.reset(episode.seed)
        if episode.slot_guided:
            await self._guide(episode)
        if episode.guided and self._settings.actor_critic.enabled:
            outputs += await self._judge(episode, observation, sampling_params)
        episode.tools = environment.tools
        conversation = episode.conversation = await self._begin(episode, observation, environment.tools)
        await self._take_turns(episode, conversation, environment, observation, sampling_params)
        return outputs, conversation

    def _environments(self) -> EnvironmentHost:
        settings, rollout = self._settings.environments, self.rollout_config
        # Here, before anything cleans, encodes, records or reports it: all of that takes time in this event loop.
        characters = CHARACTERS_PER_TOKEN * max(rollout.prompt_length, rollout.response_length)
        limits = Limits(settings.reset_timeout, settings.step_timeout, settings.episode_timeout, characters)
        return environment_host(
            isolation=settings.isolation, limits=limits, max_idle=settings.max_idle, make_limit=episode_clock().timeout
        )

    def _is_guided_slot(self, row: dict[str, Any]) -> bool:
        if not self._settings.experience:
            return False
        session = int(row["session_id"])
        if row.get(EVALUATION_KEY, False):  # always both arms: share and warm-up are settings of training
            return is_guided_slot(session, self.rollout_config.val_kwargs.n, 0.5, step=1, warmup_steps=0)
        return is_guided_slot(
            session,
            self.rollout_config.n,
            self._settings.guided_fraction,
            step=int(row["global_steps"]),
            warmup_steps=self._settings.warmup_steps,
        )

    async def _guide(self, episode: Episode) -> None:
        with _part(episode, "guide"):
            episode.guide = await guidance(self._run).guide(
                episode.info["goal"],
                task=episode.task,
                environment=episode.environment,
                prompt=episode.prompt,
                read_only=episode.evaluation,
            )
        episode.entry_text = episode.guide.text or ""
        if episode.guide.record_id:
            episode.record_ids.append(episode.guide.record_id)

    async def _judge(
        self, episode: Episode, observation: str, sampling_params: dict[str, Any]
    ) -> list[AgentLoopOutput]:
        """Let the actor accept, refine or reject its entry (Eq. 8); returns what it wrote if that is trained on."""
        settings, guide = self._settings.actor_critic, episode.guide
        experience = guide.text or ""
        critic = Conversation(self, f"{episode.id}_critic", settings.max_tokens, None)
        answer: str | None = None
        with _part(episode, "critic"):
            goal = episode.info["goal"]
            await critic.begin(judging_messages(goal, observation, experience, tokenizer=self.tokenizer))
            with suppress(TimeoutError):
                async with episode_clock().timeout(settings.timeout):
                    answer = await critic.generate(sampling_params, settings.max_tokens)
        if answer is None:
            episode.judgement = Judgement("late", guide.record_id)
            return []
        episode.judgement, text = read_judgement(answer, experience, guide.record_id)
        episode.guide = replace(guide, text=text)
        trained = settings.train and not episode.evaluation
        return [_output(critic, OutputKind.JUDGEMENT, episode)] if trained else []

    def _is_to_be_distilled(self, episode: Episode) -> bool:
        settings = self._settings.self_distillation
        return (
            settings.weight > 0
            and int(episode.row["global_steps"]) % settings.every == 0
            and episode.guided == (settings.source == "guided")
            and not episode.evaluation
            and bool(episode.info["success"])
        )

    async def _without_experience(self, episode: Episode, played: Conversation) -> AgentLoopOutput:
        """Return the episode as a free actor would have seen it, without experience, questions and their tool."""
        student = Conversation(self, episode.id, self.rollout_config.response_length, episode.tools or None)
        prompt, tokenizer = episode.row["raw_prompt"], self.tokenizer
        await student.begin(initial_messages(prompt, episode.turns[0].observation, tokenizer=tokenizer))
        for turn, (ids, log_probs) in zip(episode.turns, episode.generated, strict=True):
            # The mask is empty before the first turn, whose observation is in the prompt.
            message = observation_message(turn.observation, tokenizer=tokenizer)
            if student.mask and not await student.append(message):
                break
            # The ids as generated: encoding the text again could give others, and the loss would be on those.
            await student.put(ids, log_probs)
            student.messages.append({"role": "assistant", "content": turn.response})
        student.weight_versions = played.weight_versions
        return _output(student, OutputKind.DISTILLATION, episode)

    async def _begin(self, episode: Episode, observation: str, tools: list[dict[str, Any]]) -> Conversation:
        # The free half has neither entry nor tool, or its outcomes would depend on the bank.
        if episode.guided and self._settings.search_and_ask.max_calls > 0:
            tools = [*tools, search_and_ask_tool(self._run).schema()]
        conversation = Conversation(self, episode.id, self.rollout_config.response_length, tools or None)
        text, tokenizer = episode.guide.text, cast(Any, self.tokenizer)  # verl annotates it with a factory
        prompt = episode.row["raw_prompt"]
        await conversation.begin(initial_messages(prompt, observation, text, tokenizer=tokenizer))
        if conversation.excess:
            episode.cut_prompt = True
            _warn_of_long_prompts(self.rollout_config.prompt_length)
        # The end of the entry is worth less than the beginning of the rules, where verl would cut.
        while conversation.excess and (kept := self._length(text or "") - conversation.excess - _SPARE_TOKENS) > 0:
            text = cap_tokens(text or "", tokenizer, kept) + CUT_MARK
            episode.guide = replace(episode.guide, text=text)
            await conversation.begin(initial_messages(prompt, observation, text, tokenizer=tokenizer))
        episode.tokens["experience"] += self._length(text or "")
        return conversation

    def _length(self, text: str) -> int:
        """Return the number of tokens; rollouts that start at the same time often read the same entry."""
        tokenizer: Any = self.tokenizer  # verl annotates it with a factory
        if text not in _lengths:
            _lengths[text] = len(tokenizer.encode(text, add_special_tokens=False)) if text else 0
        return _lengths[text]

    async def _take_turns(
        self,
        episode: Episode,
        conversation: Conversation,
        environment: Session,
        observation: str,
        sampling_params: dict[str, Any],
    ) -> None:
        """Alternate between actor and environment until the episode ends or no further turn fits."""
        fits = True
        while fits:
            with _part(episode, "generate"):
                text = await conversation.generate(sampling_params, self._settings.max_turn_tokens)
            episode.cut_turns += conversation.last_turn_cut
            call = await self._tool_call(episode, conversation, text, environment)
            if call is not None:
                with _part(episode, "ask"):
                    query, reply, answer = await self._ask(episode, call)
                fits = await conversation.append({"role": "tool", "content": reply})
                if query is not None:
                    # A text that the actor could not read gets neither a reward nor a use.
                    episode.add_question(query, *((reply, answer) if fits else (UNREAD, None)))
                    episode.tokens["experience"] += self._length(reply) if fits and answer else 0
                continue
            turn = Turn(observation=observation, response=text, questions=tuple(episode.questions))
            with _acting(episode):
                observation, reward, terminated, truncated, episode.info = await environment.step(text)
            episode.turns.append(turn)
            episode.questions.clear()
            episode.final_observation = observation
            # Turns of the environment only: a tool call is no turn, and self-distillation leaves it out.
            episode.generated.append((conversation.last_turn_ids, conversation.last_turn_log_probs))
            episode.reward += reward
            valid = bool(episode.info["action_valid"])
            episode.actions.append((valid, float(reward)))
            if not valid and not episode.evaluation:
                episode.reward -= self._settings.invalid_action_penalty
            if terminated or truncated:
                return
            fits = await conversation.append(observation_message(observation, tokenizer=self.tokenizer))
        # What the last action led to and what was asked after it, which the end below does not repeat.
        episode.unfinished = Turn(observation=observation, response="", questions=tuple(episode.questions))
        # The environment may still grade an unfinished episode, a patch for example; that counts as well.
        with _acting(episode):
            episode.final_observation, reward, _, _, episode.info = await environment.truncate()
        episode.reward += reward

    async def _tool_call(
        self, episode: Episode, conversation: Conversation, text: str, environment: Session
    ) -> FunctionCall | None:
        """Return the tool call of the last turn, if the actor may make one and it is not the environment's."""
        if not episode.guided or episode.tool_calls >= self._settings.search_and_ask.max_calls:
            return None
        form = self.rollout_config.multi_turn.format
        if form in _TAGGED_FORMATS and "<tool_call>" not in text:  # saves the parser, which decodes in a thread
            return None
        _, calls = await self._parser.extract_tool_calls(conversation.last_turn_ids)
        if not calls or (environment.tools and calls[0].name != search_and_ask_tool(self._run).name):
            return None
        return calls[0]

    async def _ask(self, episode: Episode, call: FunctionCall) -> tuple[str | None, str, Answer | None]:
        """Return the query (None if the call is no question), the text of the reply, and the answer if there is one."""
        episode.tool_calls += 1
        tool = search_and_ask_tool(self._run)
        if call.name != tool.name:
            # Not the name that was called: the actor may have copied it from an observation.
            return None, f"There is no such tool; the only one is {tool.name}.", None
        arguments: Any = {}
        with suppress(ValueError, RecursionError):  # some parsers pass on what the model wrote
            arguments = json.loads(call.arguments)
        arguments = arguments if isinstance(arguments, dict) else {}
        response, _, details = await tool.execute(
            "",
            arguments,
            task=episode.task,
            environment=episode.environment,
            read_only=episode.evaluation,
            timeout=self._settings.search_and_ask.timeout,
        )
        return details["query"], response.text or "", details["answer"]


def _output(
    conversation: Conversation, kind: OutputKind, episode: Episode, reward: float | None = None
) -> AgentLoopOutput:
    """Return a conversation in the form that verl takes."""
    return AgentLoopOutput(
        prompt_ids=conversation.prompt_ids,
        response_ids=conversation.response_ids,
        response_mask=conversation.mask,
        response_logprobs=conversation.log_probs or None,
        reward_score=reward,
        num_turns=len(conversation.messages),
        metrics=AgentLoopMetrics.model_validate(episode.timing),
        extra_fields={
            "min_global_steps": min(conversation.weight_versions),
            "max_global_steps": max(conversation.weight_versions),
            "reward_extra_info": episode.details(),
            OUTPUT_KEY: kind.value,
            TASK_KEY: episode.task,
        },
    )
