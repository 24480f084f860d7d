"""A sweep with measurements: ``python lent_run.py SPECIFICATION``.

The specification is JSON: ``common`` overrides and a list of ``runs``, each with ``name``, ``overrides`` and perhaps
``plain`` (verl's own trainer instead of ours), ``start`` (a folder for the state before the first step), ``probe`` (a
file, see ``probes``), ``groups`` (likewise), ``drained`` (likewise), ``answering`` (``answering.AnsweringExtractor`` is
the extractor) or ``evaluate`` (a checkpoint for ``comprl
evaluate``, and perhaps ``result``, its file).
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from probes import drain_before_steps, probe_after_steps, probe_engines, record_groups

from verl_comprl import train
from verl_comprl.cli import evaluate
from verl_comprl.sweep.runs import Run, compose
from verl_comprl.sweep.sweep import CheckedRun, Sweep, check
from verl_comprl.training import Training

ROOT = Path(__file__).parents[2]


def register_plain_trainer() -> None:
    """Make verl's own synchronous trainer known as ``plain``; it takes engines over as ours does, and nothing else."""
    from omegaconf import open_dict
    from verl.trainer.ppo.v1.trainer_base import register_trainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from verl_comprl.config.reading import comprl_config
    from verl_comprl.trainer.engine_sharing import EngineSharing
    from verl_comprl.trainer.stopping import StopRequest

    @register_trainer("plain")
    class Plain(EngineSharing, PPOTrainerSync):
        def __init__(self, config: Any) -> None:
            with open_dict(config):
                config.trainer.v1.trainer_mode = "sync"
                config.comprl.watchdog.after = 0.0  # it looks at parts that verl's trainer does not have
            super().__init__(config)
            self.comprl, self.stop = comprl_config(config), StopRequest()

        def close(self) -> None: ...


def save_start(trainer: Any, folder: Path) -> None:
    """Save both engines as they are before a run's first step, and the versions of their weights."""
    extractor = trainer.experience_runtime.extractor
    trainer.actor_rollout_wg.save_checkpoint(str(folder / "actor"), None, trainer.global_steps)
    extractor.save(folder / "extractor")
    versions = {"actor": trainer.global_steps, "extractor": extractor.weight_version}
    (folder / "versions.json").write_text(json.dumps(versions))


class MeasuredSweep(Sweep):
    """Adds to the trainers what the specification asks for."""

    def __init__(self, runs: list[CheckedRun], specification: dict[str, dict[str, Any]], results: Path) -> None:
        super().__init__(runs, results)
        self._specification = specification

    def make_training(self, run: CheckedRun) -> Training:
        if self._specification[run.run.name].get("answering"):
            from answering import AnsweringExtractor

            self._engines.extractor = AnsweringExtractor
        training = super().make_training(run)
        trainer, wanted = training.trainer, self._specification[run.run.name]
        initialized = trainer.on_init_end

        def measured() -> None:
            initialized()
            if "start" in wanted:
                save_start(trainer, Path(wanted["start"]))
            if "probe" in wanted:
                probe_engines(trainer, Path(wanted["probe"]).with_suffix(".start"))

        trainer.on_init_end = measured
        if "probe" in wanted:
            probe_after_steps(trainer, Path(wanted["probe"]))
        if "groups" in wanted:
            record_groups(trainer, Path(wanted["groups"]))
        if wanted.get("drained"):
            drain_before_steps(trainer)
        return training

    def evaluate(self, checkpoint: str, output: Path) -> None:
        parser = argparse.ArgumentParser()
        evaluate.add_parser(parser.add_subparsers())
        options = parser.parse_args(["evaluate", "--greedy", "--checkpoint", checkpoint, "--output", str(output)])

        def lent(config: Any) -> int:
            config.transfer_queue.enable = True
            record = self.train(CheckedRun(Run("evaluated"), config, None))
            assert record["status"] == "finished", record
            return 0

        train.run, start = lent, train.run
        try:
            assert evaluate.run(options) == 0
        finally:
            train.run = start


def main() -> int:
    file = Path(sys.argv[1])
    specification = json.loads(file.read_text())
    wanted = {run["name"]: run for run in specification["runs"]}
    evaluated = [run for run in wanted.values() if "evaluate" in run]
    runs = [
        Run(name, (*specification["common"], *run["overrides"]))
        for name, run in wanted.items()
        if "evaluate" not in run
    ]
    checked = check(runs, compose(runs, ROOT / "recipes", "minihack_small/cpu"))
    register_plain_trainer()
    for run in checked:
        if wanted[run.run.name].get("plain"):
            run.config.trainer.v1.trainer_mode = "plain"
    sweep = MeasuredSweep(checked, wanted | {"evaluated": {}}, file.with_suffix(".jsonl"))
    try:
        records = sweep.run()
        if any(record["status"] != "finished" for record in records):
            return 1
        for run in evaluated:
            sweep.evaluate(run["evaluate"], file.with_name(run.get("result", "result.json")))
    finally:
        sweep.close()
    return 0


if __name__ == "__main__":
    train.prepare_environment()
    sys.exit(main())
