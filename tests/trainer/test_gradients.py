"""Gradients of one real update of each model against the paper's equations on the plain model, to 1e-4 relative.

The updates run in verl's worker and FSDP engine, in a process of their own. The equations are written out here without
verl, and use only the batch's advantages of our code.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3ForCausalLM

from verl_comprl.algorithm.advantage import subgroup_advantages, subgroup_weights
from verl_comprl.algorithm.utility import extractor_advantages
from verl_comprl.rollout.episode import OutputKind
from verl_comprl.trainer.step.batch import RolloutBatch

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]

pytestmark = pytest.mark.slow

# Two prompts: halves of 1 and 3, and of 2 and 2.
PROMPTS = ["p"] * 4 + ["q"] * 4
GUIDED = [True, False, False, False, True, True, False, False]
REWARDS = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]
CLIP = 0.2

PADDED = {"use_dynamic_bsz": False, "micro_batch_size_per_gpu": 8}
SETTINGS = [
    PADDED,
    PADDED | {"micro_batch_size_per_gpu": 2},
    {"use_dynamic_bsz": True, "max_token_len_per_gpu": 60},
]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random model with the small models' architecture."""
    from recipes.tiny_models.models import build_model
    from recipes.tiny_models.tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("model")
    messages = [{"role": "user", "content": "open the door"}, {"role": "assistant", "content": "take the key"}]
    tokenizer = train_tokenizer([(messages, [])] * 2, vocab_size=300)
    tokenizer.save_pretrained(folder)
    build_model(tokenizer, seed=3).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(model_folder: Path) -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="sdpa")


def log_probs(model: Qwen3ForCausalLM, row: Row) -> torch.Tensor:
    """Return the model's log-probs of a response, one row at a time: nothing is padded or packed."""
    ids = torch.tensor([row["prompt"] + row["response"]])
    logits = model(input_ids=ids).logits[0, len(row["prompt"]) - 1 : -1].float()
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(row["response"])[:, None])[:, 0]


def sampled_rows(model: Qwen3ForCausalLM, advantages: list[float], *, multi_turn: bool) -> list[Row]:
    """Return rows of different lengths whose stored log-probs differ slightly from the model's, so ratios are not 1."""
    random = np.random.default_rng(5)
    size = model.config.vocab_size
    rows: list[Row] = []
    for advantage in advantages:
        prompt, length = random.integers(3, size, random.integers(3, 12)), int(random.integers(4, 14))
        row: Row = {"prompt": prompt.tolist(), "response": random.integers(3, size, length).tolist()}
        mask = np.ones(length, dtype=int)
        if multi_turn:
            mask[length // 3 : length // 2] = 0  # an observation between two turns
        with torch.no_grad():
            now = log_probs(model, row).numpy()
        stored = now + random.normal(scale=0.15, size=length)
        rows.append(row | {"mask": mask.tolist(), "old_log_probs": stored.tolist(), "advantage": advantage})
    return rows


class Engine:
    """Processes in which verl makes real updates, one per rank; they live as long as this module's tests."""

    def __init__(self, folder: Path, ranks: int) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        command = [sys.executable, str(ROOT / "tests/trainer/gradient_process.py")]
        places = {f"COMPRL_{name}": str(folder) for name in ("MODELS", "TASKS", "RUN")}
        environment = os.environ | {"MASTER_PORT": port, **places, "PYTHONPATH": str(ROOT)}
        self._errors = [folder / f"errors-{ranks}-{rank}.txt" for rank in range(ranks)]
        self._processes: list[subprocess.Popen[str]] = []
        for rank, file in enumerate(self._errors):
            place = environment | {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
            with file.open("w") as output:
                pipe = subprocess.PIPE
                process = subprocess.Popen(
                    command, env=place, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=output, text=True
                )
            self._processes.append(process)

    def gradients(self, tmp_path: Path, specification: dict[str, Any]) -> list[dict[str, torch.Tensor]]:
        """Return the gradients of the specification's updates."""
        file = tmp_path / "specification.json"
        file.write_text(json.dumps(specification))
        for process in self._processes:
            assert process.stdin
            process.stdin.write(f"{file}\n")
            process.stdin.flush()
        for process in self._processes:
            assert process.stdout
            done = any(line == "done\n" for line in process.stdout)  # libraries print as well
            assert done, "\n".join(file.read_text() for file in self._errors)
        return [load_file(tmp_path / f"gradient-{number}.safetensors") for number in range(len(SETTINGS))]

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Engine]]:
    """Return the engine with a given number of ranks, started at first use."""
    running: dict[int, Engine] = {}

    def engine(ranks: int) -> Engine:
        if ranks not in running:
            running[ranks] = Engine(tmp_path_factory.mktemp("engine"), ranks)
        return running[ranks]

    yield engine
    for started in running.values():
        started.close()


@pytest.fixture
def gradients(engines: Callable[[int], Engine], model_folder: Path, tmp_path: Path) -> Callable[..., list[Any]]:
    """Return a function that makes updates on the same rows with each of ``SETTINGS`` and returns the gradients."""

    def make(
        subtree: str, rows: list[Row], *overrides: str, ranks: int = 1, fails_in: str = "", by_hand: bool = False
    ) -> list[dict[str, torch.Tensor]]:
        specification = {
            "fails_in": fails_in,
            "by_hand": by_hand,
            "overrides": [f"{subtree}.model.path={model_folder}", *overrides],
            "subtree": subtree,
            "updates": [{"rows": rows, "settings": settings} for settings in SETTINGS],
        }
        return engines(ranks).gradients(tmp_path, specification)

    return make


def check(model: Qwen3ForCausalLM, loss: torch.Tensor, real: list[dict[str, torch.Tensor]]) -> None:
    model.zero_grad()
    loss.backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for gradient in real:
        assert gradient.keys() == expected.keys()
        for name, value in expected.items():
            assert value is not None and value.norm() > 0
            assert float((gradient[name] - value).norm() / value.norm()) < 1e-4, name


def clipped(ratio: torch.Tensor, advantage: float) -> torch.Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)


def token_ratio(now: torch.Tensor, row: Row) -> torch.Tensor:
    return torch.exp(now - torch.tensor(row["old_log_probs"]))


def sequence_ratio(now: torch.Tensor, row: Row) -> torch.Tensor:
    """Return the ratio of GSPO: the geometric mean over a rollout, with gradients through each of its tokens."""
    mask = torch.tensor(row["mask"])
    mean = ((now - torch.tensor(row["old_log_probs"])) * mask).sum() / mask.sum()
    return torch.exp(mean).expand_as(now)


@pytest.mark.parametrize(
    ("loss_mode", "ratio", "ranks", "packed"),
    [
        ("vanilla", token_ratio, 1, False),
        ("gspo", sequence_ratio, 2, True),
    ],
)
def test_an_actor_update_is_equation_5(
    gradients: Callable[..., list[Any]],
    model: Qwen3ForCausalLM,
    loss_mode: str,
    ratio: Callable[[torch.Tensor, Row], torch.Tensor],
    ranks: int,
    packed: bool,
) -> None:
    advantages = subgroup_advantages(np.array(REWARDS), PROMPTS, GUIDED)
    factors = subgroup_weights(PROMPTS, GUIDED) * 4  # as the trainer passes them to verl, which divides by K
    rows = sampled_rows(model, (advantages * factors).tolist(), multi_turn=True)
    overrides = [f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}"]
    overrides += [f"actor_rollout_ref.actor.clip_ratio_{side}={CLIP}" for side in ("low", "high")]
    overrides += [f"actor_rollout_ref.model.use_remove_padding={packed}"]
    real = gradients("actor_rollout_ref", rows, *overrides, ranks=ranks)

    objective = torch.zeros(())
    for prompt in ("p", "q"):
        for half in (True, False):
            members = [n for n in range(8) if PROMPTS[n] == prompt and GUIDED[n] == half]
            outcomes = [REWARDS[n] for n in members]
            mean = sum(outcomes) / len(outcomes)
            deviation = float(np.std(outcomes, ddof=1)) if len(outcomes) > 1 else 0.0
            for n in members:
                advantage = (REWARDS[n] - mean) / (deviation + 1e-6)
                mask = torch.tensor(rows[n]["mask"])
                terms = clipped(ratio(log_probs(model, rows[n]), rows[n]), advantage)
                # mean over prompts, ½ per half, mean inside the half, mean over the rollout's own tokens
                objective = objective + (terms * mask).sum() / mask.sum() / len(members) / 2 / 2
    check(model, -objective, real)


def test_several_outputs_of_a_rollout_and_self_distillation_in_one_update(
    gradients: Callable[..., list[Any]], model: Qwen3ForCausalLM
) -> None:
    """Eq. 5 over whole rollouts plus ``λ · NLL`` of distilled outputs, in one step of verl's policy loss."""
    weight, group = 0.3, 4
    episode, judgement, distillation = OutputKind.EPISODE, OutputKind.JUDGEMENT, OutputKind.DISTILLATION
    outputs = [
        (0, judgement),
        (0, distillation),
        (0, episode),
        (1, judgement),
        (1, episode),
        (2, episode),
        (3, episode),
    ]
    success = [1.0, 0.0, 1.0, 0.0]
    rows = sampled_rows(model, [0.0] * 8, multi_turn=True)
    batch = RolloutBatch(
        keys=[f"p_{session}_{number}" for number, (session, _) in enumerate(outputs)],
        prompts=["p"] * 7,
        details=[{"guided": float(session < 2), "success": success[session]} for session, _ in outputs],
        kinds=[kind for _, kind in outputs],
        tokens=[sum(row["mask"]) for row in rows[:7]],
    )
    advantages = subgroup_advantages(np.array(success), ["p"] * 4, [True, True, False, False])
    # As the trainer does: mini-batches are twice as large as K, since there are eight rows.
    factors = batch.factors(group) * 2
    for row, (session, _), factor in zip(rows, outputs, factors, strict=False):
        row["advantage"] = advantages[session] * factor
    (distilled,) = np.flatnonzero(batch.distilled())
    rows[distilled]["advantage"] = weight * len(rows) / group
    with torch.no_grad():  # the trainer computes old log-probs itself, with the same weights
        rows[distilled]["old_log_probs"] = log_probs(model, rows[distilled]).tolist()
    rows[7] |= {"mask": [0] * len(rows[7]["response"])}  # padding
    overrides = [f"actor_rollout_ref.actor.clip_ratio_{side}={CLIP}" for side in ("low", "high")]
    real = gradients("actor_rollout_ref", rows, *overrides)

    objective = torch.zeros(())
    for session, advantage in enumerate((0.5, -0.5, 0.5, -0.5)):
        own = [row for row, (of, kind) in zip(rows, outputs, strict=False) if of == session and kind != distillation]
        scaled = advantage / (np.sqrt(0.5) + 1e-6)
        terms = [clipped(token_ratio(log_probs(model, row), row), scaled) * torch.tensor(row["mask"]) for row in own]
        tokens = sum(sum(row["mask"]) for row in own)
        objective = objective + sum(term.sum() for term in terms) / tokens / 2 / 2  # ½ per half, mean inside it
    imitated = log_probs(model, rows[distilled]) * torch.tensor(rows[distilled]["mask"])
    objective = objective + weight * imitated.sum() / sum(rows[distilled]["mask"]) / group
    check(model, -objective, real)


@pytest.mark.parametrize(
    ("ranks", "packed", "fails_in", "setting", "by_hand"),
    [
        (1, False, "", "param_offload=false", False),
        (2, True, "", "param_offload=false", False),
        (1, False, "model.layers.0.mlp", "use_no_sync_for_gradient_accumulation=true", False),
        (1, False, "model.layers.0.mlp", "param_offload=true", True),
        (1, False, "model.layers.0.mlp", "param_offload=true reshard_after_forward=false", False),
        (2, False, "model.layers.0.mlp", "param_offload=false", False),
        (2, False, "model.layers.0.mlp", "use_no_sync_for_gradient_accumulation=true", True),
    ],
)
def test_an_extractor_update_is_equation_3(
    gradients: Callable[..., list[Any]],
    model: Qwen3ForCausalLM,
    ranks: int,
    packed: bool,
    fails_in: str,
    setting: str,
    by_hand: bool,
) -> None:
    """Also after some whose forward or backward pass has raised, when the gradients of some layers were there already.

    In the second micro-batch, too, and with a PyTorch that cannot forget such a pass itself.
    """
    rewards, weights = [1.0, -1.0, 0.5, -1.0, 1.0, 0.0, -1.0, 1.0], [1.0, 0.5, 1.0, 0.0, 0.7, 1.0, 1.0, 0.3]
    kinds, failed = ["distill"] * 6 + ["answer"] * 2, [row == 3 for row in range(8)]
    rows = sampled_rows(model, extractor_advantages(rewards, weights, kinds, failed).tolist(), multi_turn=False)
    settings = [f"extractor.model.use_remove_padding={packed}"]
    settings += [f"extractor.actor.fsdp_config.{each}" for each in setting.split()]
    real = gradients("extractor", rows, *settings, ranks=ranks, fails_in=fails_in, by_hand=by_hand)

    entries = (1.0 - 1.0 + 0.5 + 1.0 + 0.0) / 5
    baselines = [entries] * 6 + [0.0] * 2
    tokens = sum(len(row["response"]) for row in rows)
    loss = torch.zeros(())
    for row, reward, weight, baseline in zip(rows, rewards, weights, baselines, strict=True):
        now = log_probs(model, row)
        ratio = torch.exp(now.detach() - torch.tensor(row["old_log_probs"])).clamp(0.9, 1.1)
        loss = loss - (ratio * weight * (reward - baseline) * now).sum() / tokens
    check(model, loss, real)
