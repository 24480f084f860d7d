"""Supervised training of a model on conversations, with loss on the assistant's tokens only.

Uses transformers' ``Trainer`` instead of verl's SFT trainer, which gives the same tokens but would have to be started
for each of the four short phases and renders every conversation twice each time it is read.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from recipes.tiny_models.tokenizer import START

IGNORED = -100
"""Label of a token without loss, as torch's cross-entropy has it."""

Example = dict[str, list[int]]


def encode(
    tokenizer: PreTrainedTokenizerFast, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()
) -> Example:
    """Turn a conversation into ids and labels.

    Args:
        tokenizer: Its template must render messages one by one, see ``tokenizer.CHAT_TEMPLATE``.
        messages: The conversation.
        tools: Schemas shown to the model, if any.

    Returns:
        ``input_ids`` and ``labels``, of equal length.
    """
    cue = len(tokenizer.encode(f"{START}assistant\n"))
    ids: list[int] = []
    labels: list[int] = []
    for index, message in enumerate(messages):
        shown = list(tools) if tools and index == 0 else None
        part = tokenizer.apply_chat_template([message], tools=shown, tokenize=True, return_dict=False)
        ids += part
        # The last token is the newline after <|im_end|>; generation has already stopped there.
        written = range(cue, len(part) - 1) if message["role"] == "assistant" else range(0)
        labels += [token if position in written else IGNORED for position, token in enumerate(part)]
    return {"input_ids": ids, "labels": labels}


@dataclass(frozen=True, slots=True)
class _Collator:
    pad_token_id: int

    def __call__(self, examples: Sequence[Example]) -> dict[str, torch.Tensor]:
        def padded(key: str, value: int) -> torch.Tensor:
            return pad_sequence([torch.tensor(example[key]) for example in examples], True, value)

        ids, labels = padded("input_ids", self.pad_token_id), padded("labels", IGNORED)
        # Padding is on the right, where causal attention never reads it: no mask is needed.
        return {"input_ids": ids, "labels": labels}


class _Examples(Dataset):
    def __init__(self, examples: Sequence[Example]) -> None:
        self._examples = examples

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: int) -> Example:
        return self._examples[index]


class _AnswerTrainer(Trainer):
    """Predicts labelled tokens only: most of a small model's time would go into the logits of the others."""

    def compute_loss(self, model: Any, inputs: dict[str, torch.Tensor], *_: Any, **__: Any) -> torch.Tensor:
        hidden = model.model(input_ids=inputs["input_ids"]).last_hidden_state[:, :-1]
        targets = inputs["labels"][:, 1:]
        labelled = targets != IGNORED
        return cross_entropy(model.lm_head(hidden[labelled]), targets[labelled])


class _Progress(TrainerCallback):
    def __init__(self, report: Callable[[int, float], None]) -> None:
        self._report = report

    def on_log(self, _: Any, state: Any, __: Any, logs: dict[str, float], **___: Any) -> None:
        if "loss" in logs:
            self._report(state.global_step, logs["loss"])


def warm_start(
    model: PreTrainedModel,
    examples: Sequence[Example],
    folder: Path,
    *,
    steps: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
    similar_lengths: bool = True,
    progress: Callable[[int, float], None] | None = None,
) -> float:
    """Train ``model`` in place.

    Args:
        model: A decoder with ``model`` and ``lm_head``, as transformers' have; on the CPU, in float32.
        examples: Results of ``encode``.
        folder: Output folder that ``Trainer`` asks for; nothing is written to it.
        steps: Optimizer steps.
        batch_size: Examples per step.
        learning_rate: Peak of a cosine schedule.
        seed: Chooses the order of the examples.
        similar_lengths: Whether a batch has examples of similar lengths, which saves padding. Where the length says
            much about the answer, such batches teach copying much more slowly.
        progress: Is told every tenth of the steps how many are done, and their mean loss per token.

    Returns:
        Mean loss per token over the last tenth of the steps, in nats.
    """
    tenth = max(1, steps // 10)
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=min(20, steps // 5),
        adam_beta2=0.95,
        weight_decay=0.01,
        train_sampling_strategy="group_by_length" if similar_lengths else "random",
        logging_steps=tenth,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        dataloader_pin_memory=False,
        seed=seed,
    )
    trainer = _AnswerTrainer(
        model=model,
        args=arguments,
        train_dataset=_Examples(examples),
        data_collator=_Collator(model.config.pad_token_id),
    )
    trainer.remove_callback(PrinterCallback)
    if progress:
        trainer.add_callback(_Progress(progress))
    trainer.train()
    return next(entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry)
