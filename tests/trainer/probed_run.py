"""A training run that compares, after every step, what each model's engine and server say about the same tokens.

Started by the tests as ``python probed_run.py PROBE_FILE override …``; appends one JSON line per step and model.
"""

import asyncio
import json
import sys
import uuid
from pathlib import Path
from typing import Any

import torch

from verl_comprl import train

PROMPT = list(range(3, 43))
TOKENS = 12


def _greedy(client: Any) -> tuple[list[int], list[float]]:
    sampling = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": True, "ignore_eos": True}
    output = asyncio.run(client.generate(uuid.uuid4().hex, prompt_ids=PROMPT, sampling_params=sampling))
    return list(output.token_ids), list(output.log_probs)


def _engine_log_probs(workers: Any, tokens: list[int]) -> list[float]:
    from verl.utils import tensordict_utils as tu

    from verl_comprl.experience.schema import CallKind, GenerationRecord
    from verl_comprl.extractor.buffer import TrainingBatch
    from verl_comprl.trainer.extractor_runtime import to_tensordict

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


def _probe(trainer: Any, file: Path) -> None:
    extractor = trainer.complement.extractor
    for model, workers, client in (
        ("actor", trainer.actor_rollout_wg, trainer.get_llm_client()),
        ("extractor", extractor.workers, extractor.client()),
    ):
        with extractor.lock:  # no update between the two measurements
            tokens, served = _greedy(client)
            computed = _engine_log_probs(workers, tokens)
            version = extractor.weight_version if model == "extractor" else trainer.global_steps
        line = {"model": model, "version": version, "tokens": tokens, "server": served, "engine": computed}
        with file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


def main() -> int:
    file, overrides = Path(sys.argv[1]), sys.argv[2:]
    from verl_comprl.trainer.layer import ComplementaryLayer

    after_step = ComplementaryLayer.on_step_end

    def probed(self: Any) -> None:
        try:
            after_step(self)
        finally:
            _probe(self, file)

    ComplementaryLayer.on_step_end = probed
    return train.main(overrides)


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
