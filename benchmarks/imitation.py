"""Measures how fast the miniature's actor can learn from one run's guided successes, by optimizer steps on each batch.

Supervised learning in plain PyTorch, without reinforcement learning: every step trains on the guided successes of the
run's step, experience removed from their prompts, as self-distillation does. Prints the loss of a right move without
experience, in held-out episodes of the run's last evaluation that succeeded with it.

    python -m benchmarks.imitation RUN [--updates 1 2 4] [--lr 1e-3] [--warmup 0]
"""

import argparse
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from env_adapters.vaults.world import MOVES
from recipes.miniature.rows import WINDOW
from recipes.miniature.run import MODELS
from verl_comprl.record.reader import RunRecord
from verl_comprl.rollout.messages import EXPERIENCE_BLOCK

_ROWS = 48
"""Episodes that are computed at once."""


@dataclass(frozen=True)
class Example:
    """An episode without its experience: tokens, which of them the actor wrote, and which are moves that were right."""

    ids: list[int]
    written: list[bool]
    right: list[bool]


def without_experience(prompt: str) -> str:
    """Return a prompt without the paragraph that contains the experience."""
    opening, closing = EXPERIENCE_BLOCK.split("{experience}")
    before, found, rest = prompt.partition(f"\n\n{opening}")
    return before + rest.partition(closing)[2] if found else prompt


def example(episode: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Example:
    """Return the example that self-distillation makes of a recorded episode."""
    prompt = tokenizer(without_experience(episode["input"]), add_special_tokens=False)["input_ids"]
    output = tokenizer(episode["output"], add_special_tokens=False, return_offsets_mapping=True)
    observations = [*(turn["observation"] for turn in episode["turns"][1:]), episode["final_observation"] or ""]
    written, right = [False] * len(prompt), [False] * len(prompt)
    for first, last in output["offset_mapping"]:
        turn = next((n for n, (a, b) in enumerate(episode["loss_spans"]) if a <= first and last <= b), None)
        written.append(turn is not None)
        is_move = episode["output"][first:last].strip() in MOVES
        right.append(turn is not None and is_move and "lights" in observations[turn])
    return Example([*prompt, *output["input_ids"]], written, right)


def successes(record: RunRecord, step: int, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the guided successes of a step, ``kind`` being training or evaluation."""
    for episode in record.episodes([step]):
        if episode["kind"] == kind and episode["guided"] and episode["outcome"] and episode["outcome"]["success"]:
            yield episode


def losses(model: Any, examples: Sequence[Example], *, of: str) -> torch.Tensor:
    """Return each example's mean loss of the tokens that ``of`` marks, shape (examples,)."""
    longest = max(len(each.ids) for each in examples)
    ids = torch.tensor([each.ids + [0] * (longest - len(each.ids)) for each in examples])
    mask = torch.tensor([getattr(each, of) + [False] * (longest - len(each.ids)) for each in examples])[:, 1:]
    logits = model(input_ids=ids).logits[:, :-1]
    each_token = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    return (each_token * mask).sum(1) / mask.sum(1).clamp(min=1)


def train(batches: Iterable[list[Example]], test: Sequence[Example], *, updates: int, lr: float, warmup: int) -> None:
    """Train on the batches in ``updates`` parts each, and print the loss of a right move after every window."""
    model = AutoModelForCausalLM.from_pretrained(MODELS / "plain/actor", dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    line = f"{updates:7}"
    for step, batch in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = lr * min(1.0, step / warmup) if warmup else lr
        random.Random(step).shuffle(batch)
        for part in filter(None, (batch[first::updates] for first in range(updates))):
            optimizer.zero_grad()
            for first in range(0, len(part), _ROWS):
                (losses(model, part[first : first + _ROWS], of="written").sum() / len(part)).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if step % WINDOW == 0:
            with torch.no_grad():
                line += f"{float(losses(model, test, of='right').mean()):6.2f}"
    print(line, flush=True)


def main() -> None:
    """Parse the command line, and print a line for each number of updates."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="folder of a finished run of the miniature with experience")
    parser.add_argument("--updates", type=int, nargs="+", default=[1, 4], help="optimizer steps on a batch")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=0, help="steps in which the learning rate rises")
    options = parser.parse_args()
    torch.set_num_threads(1)
    record = RunRecord(options.run)
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "plain/actor")
    steps = record.steps()
    test = [example(each, tokenizer) for step in steps[-1:] for each in successes(record, step, "evaluation")][:128]
    if not test:
        parser.error(f"{options.run} has no held-out success with experience in its last step, which the loss is of")
    batches = [[example(each, tokenizer) for each in successes(record, step, "training")] for step in steps]
    print("updates" + "".join(f"{step:6}" for step in range(WINDOW, len(batches) + 1, WINDOW)))
    for updates in options.updates:
        train([list(batch) for batch in batches], test, updates=updates, lr=options.lr, warmup=options.warmup)


if __name__ == "__main__":
    main()
