"""An extractor that answers the same about the same prompt and learns nothing, in the place of the trained one."""

from pathlib import Path
from typing import Any

import torch
from lessons import lesson_about
from omegaconf import DictConfig
from verl.workers.rollout.replica import TokenOutput

from benchmarks.recorded import RecordedExtractor


class AnsweringClient:
    """verl's client of a server that writes an entry about what the agent did."""

    def __init__(self, model: str) -> None:
        """Answer in tokens of ``model``."""
        self._model = model
        self._tokenizer: Any = None

    async def generate(self, request_id: str, *, prompt_ids: list[int], **_: Any) -> TokenOutput:
        """Return an answer that depends on the prompt only."""
        if self._tokenizer is None:  # in the manager's process
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self._model)
        text = lesson_about(self._tokenizer.decode(prompt_ids))
        ids = [*self._tokenizer.encode(text, add_special_tokens=False), self._tokenizer.eos_token_id]
        return TokenOutput(token_ids=ids, log_probs=[-0.5] * len(ids), extra_fields={"max_global_steps": 0})


class AnsweringExtractor(RecordedExtractor):
    """Everything of the trained extractor but engine and servers."""

    def __init__(self, view: DictConfig, pool: Any = None) -> None:
        """Take the place of an engine with its initial weights."""
        super().__init__(view, Path(), update_seconds=0.0)

    def client(self) -> AnsweringClient:
        """Return the client for the manager."""
        return AnsweringClient(self.config.actor_rollout_ref.model.path)

    def save(self, folder: Path) -> None:
        """Write a file of no weights, since there are none."""
        folder.mkdir(parents=True)
        torch.save({}, folder / "model_world_size_1_rank_0.pt")
