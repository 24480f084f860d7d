"""``comprl evaluate``: evaluates a checkpoint on the run's tasks, with experience and without; the result is JSON.

Starts the run's trainer in a temporary folder, so that nothing of the run is changed, and lets it evaluate only.
"""

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from verl_comprl.errors import INTERRUPTED

_SHARE = 0.6
"""Share of a device's memory that the servers take at most: the engine, which is not trained, needs the rest."""


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "evaluate",
        help="evaluate a checkpoint with experience and without",
        description="Play the validation tasks of a checkpoint's run, with experience and without, and print the "
        "result as JSON. The run and its bank are not changed.",
    )
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder of the checkpoint, such as RUN/global_step_30"
    )
    parser.add_argument("--bank", default="", help="a snapshot (folder or hf://datasets/…); default: the checkpoint's")
    parser.add_argument(
        "--samples", type=int, default=1, help="episodes of each task with experience, and as many without (default 1)"
    )
    parser.add_argument("--greedy", action="store_true", help="temperature 0 instead of the run's sampling")
    parser.add_argument("--output", type=Path, help="also write the result to this file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the run's configuration")
    # One of them may have been meant by a key=value that does not exist.
    parser.set_defaults(run=run, names=tuple(parser._option_string_actions))


def run(options: argparse.Namespace) -> int:
    """Evaluate and print the result.

    Raises:
        ValueError: If checkpoint, bank or overrides do not fit.
        FileNotFoundError: If there is no such checkpoint, or it has lost its models or another part.
        EvaluationError: If the evaluation changed the bank; the result is printed all the same.
    """
    from verl_comprl import train
    from verl_comprl.cli.evaluation_result import check_bank, result  # loads the bank
    from verl_comprl.trainer.checkpoint.folders import called_by_its_run
    from verl_comprl.training import interrupt_on_signals

    checkpoint = called_by_its_run(options.checkpoint)
    if not checkpoint.is_dir():
        raise FileNotFoundError(f"checkpoint {options.checkpoint} does not exist; it is a folder RUN/global_step_<N>")
    if not checkpoint.name.startswith("global_step_"):
        raise ValueError(
            f"checkpoint {options.checkpoint} is not a checkpoint folder; its name must be global_step_<N>"
        )
    if options.samples < 1:
        raise ValueError(f"--samples {options.samples} must be at least 1")
    interrupt_on_signals()
    folder = Path(tempfile.mkdtemp(prefix="comprl-evaluate-"))
    code = 0
    try:
        config = _config(checkpoint, options, folder)
        _check_complete(checkpoint)
        if config.trainer.device == "cpu":  # a run on the CPU is evaluated there too
            os.environ.setdefault("VERL_PLATFORM", "cpu")
        train.prepare_environment()
        with redirect_stdout(sys.stderr):  # standard output is for the result
            if code := train.run(config):
                return code
        found = result(config, checkpoint, folder)
    finally:
        # The error message of a failed run names its train.log; a refused one has none, a stopped one no message.
        if code in (0, INTERRUPTED) or not any(folder.iterdir()):
            shutil.rmtree(folder)
    text = json.dumps(found, indent=1)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n", encoding="utf-8")
    check_bank(found)  # after all that was measured has been printed
    return 0


def _check_complete(checkpoint: Path) -> None:
    """Refuse a checkpoint that cannot be loaded before anything is started for it."""
    from verl_comprl.cli.export.checkpoint import Checkpoint
    from verl_comprl.trainer.checkpoint.manifest import flaw

    if note := Checkpoint(checkpoint).removed_models_note:
        raise FileNotFoundError(note)
    if wrong := flaw(checkpoint):
        raise FileNotFoundError(f"checkpoint {checkpoint} is torn: {wrong}")


def _config(checkpoint: Path, options: argparse.Namespace, folder: Path) -> Any:
    """Return the run's configuration, changed so that it evaluates ``checkpoint`` and writes into ``folder`` only."""
    from omegaconf import open_dict

    from verl_comprl.config.saved import load_config

    config = load_config(checkpoint.parent, options.overrides, options.names)
    if options.bank and not config.comprl.experience:
        raise ValueError(f"--bank {options.bank}: the run had no experience; add comprl.experience=true to use a bank")
    sampling = config.actor_rollout_ref.rollout.val_kwargs
    with open_dict(config):
        # Nothing is trained: no servers of their own are needed, and no state of rollouts that were running.
        config.trainer.v1.trainer_mode = "comprl_sync"
        server = config.actor_rollout_ref.rollout
        if not config.actor_rollout_ref.hybrid_engine:  # its servers had slots of their own, of which there may be more
            slots = config.trainer.nnodes * config.trainer.n_gpus_per_node
            server.n_gpus_per_node = config.trainer.n_gpus_per_node
            server.tensor_model_parallel_size = math.gcd(server.tensor_model_parallel_size, slots)
        config.actor_rollout_ref.hybrid_engine = True
        server.checkpoint_engine.backend = "naive"
        # One that had devices of its own gets room beside the engine, without whose optimizer there is enough.
        server.gpu_memory_utilization = min(server.gpu_memory_utilization, _SHARE)
        for model in (config.actor_rollout_ref, config.extractor):
            model.actor.checkpoint.load_contents = ["model"]
        config.trainer.update(
            resume_mode="resume_path",
            resume_from_path=str(checkpoint),
            val_before_train=True,
            val_only=True,
            logger=[],
            default_local_dir=str(folder),
        )
        sampling.n = options.samples * (2 if config.comprl.experience else 1)
        if options.greedy:
            sampling.update(temperature=0.0, top_p=1.0, top_k=-1)
        if config.comprl.experience:
            config.comprl.initial_bank = options.bank or str(checkpoint / "comprl" / "bank")
            config.comprl.bank.update(path=str(folder / "bank"), url="")
            config.comprl.queue.folder = str(folder / "queue")
            config.comprl.extractor.update(train=False, distill=False)
            config.comprl.drain_timeout = 0  # the queue of the checkpoint is not worked on
    return config
