"""Token stream of one episode: exact ids, loss mask and log-probs, turn by turn.

Ids that the model generated are kept as they are and never re-encoded from text; the tokens between them come from
verl's Continuous Token builder. Only generated tokens carry loss.
"""

import math
import zlib
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase
from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder
from verl.workers.rollout.replica import TokenOutput

from verl_comprl.errors import Boundary, failing_at
from verl_comprl.rollout.chat_template import describe_tools, shows_tools, tool_response, turn_closing
from verl_comprl.rollout.messages import Message
from verl_comprl.untrusted import schema_without_delimiters, without_control_tokens, without_delimiters


class Conversation:
    """Chat messages of an episode and their tokens."""

    def __init__(self, loop: AgentLoopBase, request_id: str, response_length: int, tools: list[dict] | None) -> None:
        """Start without messages.

        Args:
            loop: The agent loop whose tokenizer, token builder and server client are used.
            request_id: Keeps the turns of one episode on one server.
            response_length: Tokens after the prompt that fit, context between turns included.
            tools: Schemas that the model is shown, or ``None``: by its chat template, or in the system message if the
                template ignores them. They may be an environment's, and are cleaned like its observations.
        """
        tools = tools and schema_without_delimiters(tools, loop.tokenizer)
        self._loop: Any = loop  # verl annotates its tokenizer with a factory and its optional tools as required
        self._request_id = request_id
        self._response_length = response_length
        self._described = tools if tools and not shows_tools(self._loop.tokenizer) else None
        self._tools = None if self._described else tools
        self.messages: list[Message] = []
        self.prompt_ids: list[int] = []
        self.excess = 0
        """Tokens that the prompt was too long, which verl has cut from its beginning, where the rules are."""
        self.ids: list[int] = []
        self.mask: list[int] = []
        self.log_probs: list[float] = []
        self.last_turn_ids: list[int] = []
        self.last_turn_log_probs: list[float] | None = None
        self.last_turn_cut = False
        """Whether the model was still writing at the turn's limit."""
        self.weight_versions: list[int] = []

    @property
    def response_ids(self) -> list[int]:
        """Everything after the prompt."""
        return self.ids[len(self.prompt_ids) :]

    async def begin(self, messages: list[Message]) -> None:
        """Encode the messages that the episode starts with, without control tokens in those of the user."""
        messages = [self._harmless(message) for message in messages]
        self.messages = describe_tools(messages, self._described) if self._described else list(messages)
        self.prompt_ids = await self._loop.ct_build_initial_tokens(self.messages, tools=self._tools)
        self.ids = list(self.prompt_ids)
        self.excess = 0
        limit = self._loop.rollout_config.prompt_length
        if len(self.prompt_ids) >= limit:  # verl says neither whether nor what it has cut
            whole = self._loop.continuous_token_builder.build_initial_tokens(self.messages, tools=self._tools)
            self.excess = max(0, len(whole) - limit)

    async def generate(self, sampling_params: dict[str, Any], max_tokens: int) -> str:
        """Let the actor write one turn and return its text."""
        budget = min(max_tokens, self._response_length - len(self.mask))
        with failing_at(Boundary.SERVER):
            output: TokenOutput = await self._loop.server_manager.generate(
                request_id=self._request_id,
                prompt_ids=self.ids,
                sampling_params={**sampling_params, **self._seed(), "max_tokens": budget},
            )
            if not all(map(math.isfinite, output.log_probs or ())):  # they would make the update's gradient NaN
                raise ValueError("the actor's server returned a log-prob that is not finite")
        await self.put(output.token_ids, output.log_probs)
        ended = output.token_ids and output.token_ids[-1] == self._loop.tokenizer.eos_token_id
        self.last_turn_cut = len(output.token_ids) >= budget and not ended
        versions = (output.extra_fields.get(key) for key in ("min_global_steps", "max_global_steps"))
        self.weight_versions += [version for version in versions if version is not None]
        text = self._loop.tokenizer.decode(output.token_ids, skip_special_tokens=True)
        self.messages.append({"role": "assistant", "content": text})
        return text

    def _seed(self) -> dict[str, int]:
        """Return a turn's own seed where all is to be reproducible; verl would give one to all rollouts of a prompt."""
        rollout = self._loop.rollout_config
        if not rollout.get("full_determinism", False):
            return {}
        return {"seed": zlib.crc32(f"{rollout.seed} {self._request_id} {len(self.mask)}".encode())}

    async def put(self, token_ids: list[int], log_probs: list[float] | None) -> None:
        """Add a turn that the actor has generated, in this or in another conversation, with loss on all of it."""
        merged, self.mask, all_log_probs = await self._loop.ct_merge_assistant_token(
            self.ids, token_ids, self.mask, self.log_probs, assistant_logprobs=log_probs
        )
        self.ids, self.log_probs = merged.token_ids, all_log_probs or []
        self.last_turn_ids, self.last_turn_log_probs = token_ids, log_probs

    async def append(self, message: Message) -> bool:
        """Put a context message after the last turn; ``False`` (and nothing changed) if no further turn would fit."""
        message = self._harmless(message)
        if self._described and message["role"] == "tool":
            message = tool_response(message["content"])
        # Nothing is assigned before it is known to fit: the stream must end with generated tokens, which carry loss.
        ids, mask, log_probs = self._closed_turn()
        messages = [*self.messages, message]
        merged, mask, log_probs = await self._loop.ct_merge_context_msg(
            self.messages, messages, ids, mask, log_probs, tools=self._tools
        )
        if len(mask) >= self._response_length:
            return False
        self.messages, self.ids, self.mask, self.log_probs = messages, merged.token_ids, mask, log_probs or []
        return True

    def _harmless(self, message: Message) -> Message:
        """Return a message of a user or tool, which may quote anything, without tokens that the model obeys.

        Around a tool's answer stand tags; those of a user's message are in it already.
        """
        if message["role"] not in ("user", "tool"):  # rules of the environment, written by whoever runs it
            return message
        clean = without_delimiters if message["role"] == "tool" else without_control_tokens
        return {**message, "content": clean(str(message["content"]), self._loop.tokenizer)}

    def _closed_turn(self) -> tuple[list[int], list[int], list[float]]:
        """Return the stream with what has to follow the model's last token before a context message, without loss.

        That is the end token after a turn which was cut off at its limit, and the template's separator of turns, which
        a model does not write. verl's builders for known models add the separator themselves, its generic one does not.
        """
        closing = (self._loop.tokenizer.eos_token_id,)
        if type(self._loop.continuous_token_builder) is ContinuousTokenBuilder:
            closing = turn_closing(self._loop.tokenizer) or closing
        missing = closing[1:] if self.ids[-1] == closing[0] else closing
        zeros = [0] * len(missing)
        return [*self.ids, *missing], [*self.mask, *zeros], [*self.log_probs, *map(float, zeros)]
