"""Subprocess of the gradient tests: makes updates with a real verl engine, as a worker does, and writes gradients.

Reads paths of specifications from standard input and answers each with a line. A specification is JSON with
``overrides`` of recipes/minihack_small, ``subtree`` of the model, and ``updates``: each has ``rows`` with ``prompt``,
``response``, ``mask``, ``old_log_probs`` and ``advantage``, and ``settings`` of this update. The gradient of update n
goes to ``gradient-<n>.safetensors`` in the same folder. With ``fails_in``, the name of a module, the first two updates
are made before all others, too, and raise in the first and second backward pass of that module, then in its first and
second forward pass; with ``by_hand`` PyTorch lacks ``reset_iter_state`` then. One of several processes (``RANK``,
``WORLD_SIZE``) takes its equal share of the rows, as verl's dispatch divides them.
"""

import itertools
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def tensordict(rows: list[dict[str, Any]]) -> Any:
    """Return rows in the layout in which verl's trainer hands a batch to a worker."""
    import torch
    from verl.utils import tensordict_utils as tu

    def jagged(values: list[list[Any]], dtype: torch.dtype) -> torch.Tensor:
        return torch.nested.as_nested_tensor([torch.tensor(row, dtype=dtype) for row in values], layout=torch.jagged)

    sequences = [row["prompt"] + row["response"] for row in rows]
    masks = jagged([row["mask"] for row in rows], torch.int64)
    return tu.get_tensordict(
        {
            "prompts": jagged([row["prompt"] for row in rows], torch.int64),
            "responses": jagged([row["response"] for row in rows], torch.int64),
            "input_ids": jagged(sequences, torch.int64),
            "position_ids": jagged([list(range(len(ids))) for ids in sequences], torch.int64),
            "response_mask": masks,
            "loss_mask": masks,
            "old_log_probs": jagged([row["old_log_probs"] for row in rows], torch.float32),
            "advantages": jagged([[row["advantage"]] * len(row["response"]) for row in rows], torch.float32),
        }
    )


def failing(call: int) -> Any:
    """Return a hook that raises at its n-th call, as a device does that has no memory left."""
    calls = itertools.count(1)

    def fail(*given: Any) -> None:
        if next(calls) == call:
            raise MemoryError

    return fail


def update(file: Path) -> None:
    from omegaconf import OmegaConf
    from safetensors.torch import save_file
    from torch.distributed.fsdp import FSDPModule
    from verl.utils import tensordict_utils as tu

    from verl_comprl.config.composing import compose
    from verl_comprl.trainer.engine_worker import EngineWorker
    from verl_comprl.trainer.extractor.runtime import extractor_view

    specification = json.loads(file.read_text())
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = compose(ROOT / "recipes", "minihack_small/cpu", specification["overrides"])
    OmegaConf.resolve(config)
    view: Any = extractor_view(config) if specification["subtree"] == "extractor" else config
    worker: Any = EngineWorker(config=view.actor_rollout_ref, role="actor")
    worker.init_model()
    engine: Any = worker.actor.engine
    taken: list[dict[str, Any]] = []

    def keep_gradient() -> float:
        gradients = {name: parameter.grad for name, parameter in engine.module.named_parameters()}
        taken.append({name: gradient.full_tensor().clone() for name, gradient in gradients.items()})
        return 0.0

    engine.optimizer_step = keep_gradient  # every update starts from the same weights

    def make(update: dict[str, Any]) -> None:
        every = update["rows"]
        share = len(every) // ranks
        rows = every[rank * share : (rank + 1) * share]
        data = tensordict(rows)
        settings = update["settings"]
        if "micro_batch_size_per_gpu" in settings:
            settings["micro_batch_size_per_gpu"] = min(settings["micro_batch_size_per_gpu"], share)
        tu.assign_non_tensor(
            data,
            calculate_entropy=False,
            distillation_use_topk=False,
            distillation_only=False,
            global_batch_size=len(every),
            mini_batch_size=len(every),
            epochs=1,
            seed=1,
            dataloader_kwargs={"shuffle": False},
            temperature=1.0,
            global_token_num=[len(row["prompt"]) + len(row["response"]) for row in rows],
            **settings,
        )
        worker.update_actor(data)

    if name := specification.get("fails_in"):
        module = engine.module.get_submodule(name)
        reset = FSDPModule.reset_iter_state
        if specification["by_hand"]:
            del FSDPModule.reset_iter_state
        for register in (module.register_full_backward_hook, module.register_forward_hook):
            for call, broken in enumerate(specification["updates"][:2], 1):
                hook = register(failing(call))
                with suppress(MemoryError):
                    make(broken)
                hook.remove()
        FSDPModule.reset_iter_state = reset
        assert not taken
    for update in specification["updates"]:
        make(update)
    for number, gradient in enumerate(taken if rank == 0 else ()):
        save_file(gradient, file.with_name(f"gradient-{number}.safetensors"))


if __name__ == "__main__":
    os.environ |= {"LOCAL_RANK": os.environ["RANK"], "VERL_PLATFORM": "cpu", "MASTER_ADDR": "127.0.0.1"}
    for line in sys.stdin:
        update(Path(line.strip()))
        print("done", file=sys.__stdout__, flush=True)
