"""Measurements inside a run.

Log-probs of the same tokens from each model's engine and server, a JSON line per model after every step; and what is in
TransferQueue when a checkpoint is written, a line per checkpoint.
"""

import asyncio
import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch

PROMPT = list(range(3, 43))
TOKENS = 12
FIXED = list(range(50, 50 + TOKENS))


def _greedy(client: Any) -> tuple[list[int], list[float]]:
    sampling = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": True, "ignore_eos": True}
    output = asyncio.run(client.generate(uuid.uuid4().hex, prompt_ids=PROMPT, sampling_params=sampling))
    return list(output.token_ids), list(output.log_probs)


def _engine_log_probs(workers: Any, tokens: list[int]) -> list[float]:
    from verl.utils import tensordict_utils as tu

    from verl_comprl.extractor.buffer import TrainingBatch
    from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
    from verl_comprl.trainer.extractor.batch import to_tensordict

    record = GenerationRecord(
        id="probe",
        kind=CallKind.ANSWER,
        prompt_ids=tuple(PROMPT),
        response_ids=tuple(tokens),
        response_log_probs=(0.0,) * len(tokens),
        weight_version=0,
    )
    copies = 8  # the engines' micro-batch size
    data = to_tensordict(TrainingBatch([record] * copies, [0.0] * copies, [1.0] * copies, [0.0] * copies))
    tu.assign_non_tensor(data, calculate_entropy=False, compute_loss=False, temperature=1.0)
    log_probs = tu.get(workers.compute_log_prob(data), "log_probs")
    sequence = torch.as_tensor(log_probs.unbind(0)[0])
    start = len(PROMPT) - 1  # the engine aligns a token's log-prob with the position before it
    return sequence[start : start + len(tokens)].tolist()


def read_probes(file: Path, model: str) -> list[dict[str, Any]]:
    """Return what was measured of a model."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if line["model"] == model]


def probe(trainer: Any, file: Path) -> None:
    extractor = trainer.experience_runtime.extractor
    for model, workers, client in (
        ("actor", trainer.actor_rollout_wg, trainer.get_llm_client()),
        ("extractor", extractor.workers, extractor.client()),
    ):
        with extractor.lock:  # no update between the two measurements
            tokens, served = _greedy(client)
            computed = _engine_log_probs(workers, tokens)
            version = extractor.weight_version if model == "extractor" else trainer.global_steps
            fixed = _engine_log_probs(workers, FIXED)
        line = {"model": model, "version": version, "tokens": tokens, "server": served, "engine": computed}
        _write(file, line | {"fixed": fixed})


def probe_engines(trainer: Any, file: Path) -> None:
    """Append the engines' log-probs of fixed tokens, before a run's first step."""
    extractor = trainer.experience_runtime.extractor
    for model, workers, version in (
        ("actor", trainer.actor_rollout_wg, trainer.global_steps),
        ("extractor", extractor.workers, extractor.weight_version),
    ):
        _write(file, {"model": model, "version": version, "fixed": _engine_log_probs(workers, FIXED)})


def _write(file: Path, line: dict[str, Any]) -> None:
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")


def probe_after_steps(trainer: Any, file: Path) -> None:
    """Make a trainer, or all trainers of a class, run ``probe`` after every step."""
    after_step = trainer.on_step_end

    def probed(*arguments: Any) -> None:
        try:
            after_step(*arguments)
        finally:
            probe(arguments[0] if arguments else trainer, file)

    trainer.on_step_end = probed


def record_groups(trainer: Any, file: Path) -> None:
    """Make a trainer, or all trainers of a class, write down what TransferQueue holds when a checkpoint is written."""
    import transfer_queue as tq

    save = trainer._save_checkpoint

    def recorded(*arguments: Any) -> None:
        rows = (tq.kv_list("train") or {}).get("train", {})
        prompts = [key for key, tag in rows.items() if tag.get("is_prompt", False)]
        without_prompt = [key for key in rows if key not in prompts and key.split("_")[0] not in prompts]
        step = (arguments[0] if arguments else trainer).global_steps
        _write(file, {"step": step, "prompts": len(prompts), "rows_without_prompt": len(without_prompt)})
        save(*arguments)

    trainer._save_checkpoint = recorded


def drain_before_steps(trainer: Any, seconds: float = 120) -> None:
    """Let what was played be distilled before a step begins or a checkpoint is written.

    Before a step full batches are trained on, too; before a checkpoint none may be (``hold_updates``). What a step's
    guides find, and what a checkpoint has, does not depend on timing then.
    """
    learning = trainer.comprl.extractor

    def distil() -> None:
        assert ray.get(trainer.experience_runtime.manager.drain.remote(seconds)), "it could not be distilled"

    def train() -> None:
        deadline = time.monotonic() + seconds
        while learning.train and waiting() >= learning.batch_size:
            assert time.monotonic() < deadline, "it could not be trained on"
            time.sleep(0.05)

    def waiting() -> float:
        metrics: Any = ray.get(trainer.experience_runtime.manager.metrics.remote())
        return metrics["buffer/samples"]

    def after(*works: Callable[[], None]) -> Callable[[], None]:
        def do_all() -> None:
            for work in works if trainer.global_steps > 0 else works[-1:]:
                work()

        return do_all

    trainer.on_step_begin = after(distil, train, trainer.on_step_begin)
    trainer._save_checkpoint = after(distil, trainer._save_checkpoint)
