"""Tool ``search_and_ask``, by which a guided actor asks for experience about its current state.

It is a ``BaseTool`` of verl: our agent loop uses it directly; verl's own tool agent loop can take it from a tool config
that names this class (``multi_turn.tool_config_path``), with ``run: FOLDER``, the run's ``trainer.default_local_dir``.
"""

from typing import Any

from verl.tools.base_tool import BaseTool
from verl.tools.schemas import OpenAIFunctionToolSchema, ToolResponse
from verl.utils.rollout_trace import rollout_trace_op

from verl_comprl.config.tree import SearchAndAskConfig
from verl_comprl.rollout.guidance import Guidance
from verl_comprl.rollout.tool_schema import SEARCH_AND_ASK_SCHEMA


class SearchAndAskTool(BaseTool):
    """Answers a query from the best entry of the bank; a failure costs the answer only."""

    def __init__(
        self,
        config: dict[str, Any] | None = None,
        tool_schema: OpenAIFunctionToolSchema | None = None,
        *,
        guidance: Guidance | None = None,
    ) -> None:
        """Set up the tool.

        Args:
            config: verl's tool config: ``run``, and ``task`` and ``environment`` if the bank's scope is one of them.
            tool_schema: Description for the model; ours by default.
            guidance: Client of the manager; found by ``run`` by default.
        """
        self.config = config or {}
        self.tool_schema = tool_schema or OpenAIFunctionToolSchema.model_validate(SEARCH_AND_ASK_SCHEMA)
        self.name = self.tool_schema.function.name
        self._guidance = guidance or Guidance.connect(self.config.get("run", ""))

    def schema(self) -> dict[str, Any]:
        """Return the schema in the form that chat templates take."""
        return self.tool_schema.model_dump(exclude_unset=True, exclude_none=True)

    @rollout_trace_op
    async def execute(
        self, instance_id: str, parameters: dict[str, Any], **kwargs: Any
    ) -> tuple[ToolResponse, float, dict]:
        """Answer ``parameters["query"]``; the third element holds it ("" if it is no text) and the ``Answer``."""
        query = parameters.get("query")
        query = query.strip() if isinstance(query, str) else ""
        if not query:
            return ToolResponse(text="Give a non-empty query."), 0.0, {"query": "", "answer": None}
        answer = await self._guidance.ask(
            query,
            task=kwargs.get("task", self.config.get("task", "")),
            environment=kwargs.get("environment", self.config.get("environment", "")),
            read_only=kwargs.get("read_only", False),
            timeout=kwargs.get("timeout", SearchAndAskConfig().timeout),
        )
        return ToolResponse(text=answer.text), 0.0, {"query": query, "answer": answer}
