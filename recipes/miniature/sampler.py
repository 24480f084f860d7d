"""Samples answers of a small model with transformers alone; a run uses vLLM."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_comprl.rollout.messages import Message


class Sampler:
    """Samples answers of one model at temperature 1."""

    def __init__(self, folder: Path, max_new_tokens: int) -> None:
        """Load the model and its tokenizer."""
        self._tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self._model = AutoModelForCausalLM.from_pretrained(folder).eval()
        self._max_new_tokens = max_new_tokens

    def answers(self, conversations: Sequence[list[Message]], tools: Sequence[dict[str, Any]] = ()) -> list[str]:
        """Return one answer to each conversation, in which the model is shown ``tools``."""
        if not conversations:
            return []
        texts = [
            self._tokenizer.apply_chat_template(
                messages, tools=list(tools) or None, add_generation_prompt=True, tokenize=False
            )
            for messages in conversations
        ]
        inputs = self._tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
        inputs.pop("token_type_ids", None)
        with torch.inference_mode():
            output = self._model.generate(
                **inputs, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=self._max_new_tokens
            )
        written = output[:, inputs["input_ids"].shape[1] :]
        return self._tokenizer.batch_decode(written, skip_special_tokens=True)
