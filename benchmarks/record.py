"""Cost of recording a step: ``python -m benchmarks.record [--episodes 96] [--turns 8] [--step-seconds 8] [--steps 5]``.

Episodes of a MiniHack room with made-up responses, through everything but TransferQueue. All of it is processor time of
threads, to which other load on the machine adds less than to the time that passes: of the thread that the step waits
for, of the workers' while other episodes run, of the trainer's and the manager's while the actor is trained. Medians of
the steps, without a first one, in which libraries load what they need.
"""

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import transfer_queue

from env_adapters import make
from recipes.tiny_models.tokenizer import train_tokenizer
from verl_comprl.config.tree import RecordConfig
from verl_comprl.experience import Add, ParsedAnswer
from verl_comprl.experience.schema import Turn
from verl_comprl.extractor.calls import Transcript
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.manager.call_log import CallLog
from verl_comprl.manager.messages import Guide
from verl_comprl.record.step_files import StepFiles
from verl_comprl.rollout.episode import Episode
from verl_comprl.rollout.recorder import EVALUATION_TAG, FAILED_TAG, PARTITION, EpisodeRecorder
from verl_comprl.trainer.run_folder.episode_log import EpisodeLog

WORDS = [
    "the",
    "staircase",
    "is",
    "east",
    "and",
    "a",
    "boulder",
    "in",
    "way",
    "so",
    "I",
    "walk",
    "first",
    "then",
    "key",
]
RESPONSE = " ".join(WORDS * 4)


def response(random: Random) -> str:
    """Return a turn of some 80 words."""
    return f"<think>{' '.join(random.choices(WORDS, k=80))}</think>\n<action>move {random.choice(WORDS)}</action>"


class Queue:
    """In the place of TransferQueue's functions that the trainer calls."""

    def __init__(self) -> None:
        """Start empty."""
        self.partitions: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.fields: dict[str, torch.Tensor] = {}

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Return copies of all tags."""
        return {name: {key: dict(tag) for key, tag in tags.items()} for name, tags in self.partitions.items()}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, torch.Tensor]:
        """Return the records."""
        rows = [self.fields[key] for key in keys]
        return {select_fields[0]: torch.nested.as_nested_tensor(rows, layout=torch.jagged)}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        """Remove the records."""
        for key in keys:
            del self.partitions[partition_id][key], self.fields[key]


def episode(number: int, turns: int, tokenizer: Any) -> Episode:
    """Return an episode that has ended; those of a prompt see the same room."""
    random, observations = Random(number), observations_of(turns, seed=number // 8)
    row = {"uid": f"u{number // 8}", "session_id": number % 8, "global_steps": 1, "data_source": "minihack"}
    played = Episode(row, slot_guided=True, guide=Guide("found", RESPONSE, "entry", "call"))
    played.entry_text, played.info = RESPONSE, {"goal": "reach the stairs", "success": True, "score": 1.0}
    prompt, ids, mask = tokenizer.encode(observations[0] * 2), [], []
    for turn in range(turns):
        text = response(random)
        played.turns.append(Turn(observation=observations[turn], response=text))
        played.actions.append((True, 0.0))
        for part, loss in ((text, 1), (played.turns[-1].observation, 0)):
            tokens = tokenizer.encode(part, add_special_tokens=False)
            ids += tokens
            mask += [loss] * len(tokens)
    conversation: Any = SimpleNamespace(prompt_ids=prompt, response_ids=ids, mask=mask, weight_versions=[1])
    played.conversation = conversation
    return played


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of CPU that ``work`` took in this thread, and what it returned."""
    started = time.thread_time()
    result = work()
    return time.thread_time() - started, result


def observations_of(turns: int, seed: int) -> list[str]:
    """Return the observations of an episode, as many as ``turns``."""
    environment = make("minihack", variant="room-ultimate", max_turns=turns + 1)
    seen = [environment.reset(seed=seed)[0]]
    moves = ("east", "south", "west", "north")
    seen += [environment.step(f"<action>move {moves[turn % 4]}</action>")[0] for turn in range(turns - 1)]
    environment.close()
    return seen


def calls_of(count: int, messages: list[dict[str, Any]], log: CallLog) -> None:
    """Work off a distillation of each episode."""
    for number in range(count):
        record = GenerationRecord(f"call {number}", CallKind.DISTILL, [1], [2], [-1.0], weight_version=0)
        log.answered(record.id, Transcript(messages, RESPONSE, (1000, 200)))
        log.finished(record, ParsedAnswer((Add(title="t", content=RESPONSE),), ()), episode=f"u_{number}")


def step(folder: Path, played: list[Episode], messages: list[dict[str, Any]], tokenizer: Any) -> dict[str, float]:
    """Record a step into ``folder``; return the seconds of CPU that each part of it took."""
    queue, recorder = Queue(), EpisodeRecorder()
    log, calls = EpisodeLog(folder, RecordConfig()), CallLog(folder / "calls")

    def send() -> None:
        for item in played:
            queue.fields[item.id] = recorder.packed(item.row, item, tokenizer, None)
            queue.partitions[PARTITION][item.id] = {FAILED_TAG: False, EVALUATION_TAG: False}

    workers, _ = timed(send)
    log.trained([item.id for item in played], [0.5] * len(played))
    # In the package itself, from which each of our modules takes them when it calls them.
    with patch.multiple(
        transfer_queue, kv_list=queue.kv_list, kv_batch_get=queue.kv_batch_get, kv_clear=queue.kv_clear
    ):
        in_step, _ = timed(lambda: log.take(1))
        log.close(1)
    manager, _ = timed(lambda: calls_of(len(played), messages, calls))
    calls.close(1)
    assert log.metrics() == {"comprl/record/episodes_lost": 0.0} and not calls.lost
    assert log.writer and calls.writer
    return {
        "in the step itself": in_step,
        "workers: decode and pack, all together": workers,
        "trainer's thread: write episodes": log.writer.seconds,
        "manager: note calls": manager,
        "manager's thread: write calls": calls.writer.seconds,
    }


def main() -> None:
    """Print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--step-seconds", type=float, default=8.0)
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()

    observations = observations_of(options.turns, seed=0)
    messages = [{"role": "user", "content": f"{RESPONSE}\n{text}"} for text in observations]
    tokenizer = train_tokenizer([(messages, ())] * 2, vocab_size=600)
    played = [episode(number, options.turns, tokenizer) for number in range(options.episodes)]
    with tempfile.TemporaryDirectory() as name:
        folders = [Path(name, str(number)) for number in range(options.steps + 1)]
        _, *steps = [step(folder, played, messages, tokenizer) for folder in folders]
        rows = {what: median(costs[what] for costs in steps) for what in steps[0]}
        rows["together"] = median(sum(costs.values()) for costs in steps)
        for what, seconds in rows.items():
            print(f"{what:40} {1000 * seconds:8.1f} ms  {seconds / options.step_seconds:7.3%} of a step")
        for part in ("episodes", "calls"):
            print(f"{part:40} {StepFiles(folders[-1] / part).file(1).stat().st_size / 1024:8.0f} KiB")


if __name__ == "__main__":
    main()
