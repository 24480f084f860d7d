"""Runs the miniature: ``python -m recipes.miniature.run --families 3 --arms baseline complementary --seeds 1 2``.

Checks the two models of ``models/``, makes the worlds, trains every arm with every seed on engines that are started
once, and prints tables and figures. What has finished is not repeated, and with more steps it goes on where it ended.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipes.miniature.arms import ARMS, MECHANISM_ARMS, filling, initial_bank
from recipes.miniature.data import make_data
from recipes.miniature.settings import NAMES, SETTINGS, Setting
from verl_comprl.train import prepare_environment

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "recipes/miniature/models"
"""For each setting actor and extractor as ``prepare`` made them, with which the published numbers were measured."""
PROMPTS_PER_FAMILY = 4
ROLLOUTS = 8
"""Rollouts of a prompt: verl_comprl's default."""
ENTRIES_PER_RULE = 12
RULES_PER_FAMILY = 8


def set_environment(output: Path, models: Path = MODELS / "plain") -> None:
    """Set the variables that miniature.yaml reads: folder of all files, and of the models."""
    os.environ |= {
        "COMPRL_MINIATURE": str(output),
        "COMPRL_MODELS": str(models.resolve()),
        "HF_HUB_OFFLINE": "1",
    }


def run_name(arm: str, families: int, seed: int, prompts: int | None = None) -> str:
    """Return the name of a run, which is also that of its folder; see ``rows.Row``."""
    batch = f"{families}x{prompts}" if prompts else str(families)
    return f"{arm}-{batch}-{seed}"


def shared_overrides(
    data: Path, *, families: int, seed: int, steps: int, every: int, prompts: int | None = None
) -> list[str]:
    """Return the overrides that all arms share.

    Args:
        data: Folder of the worlds.
        families: Number of task families that share the bank.
        seed: Chooses the world and the order of tasks.
        steps: Actor steps.
        every: Steps between evaluations, and between checkpoints.
        prompts: Prompts per step; None for four of each family.
    """
    train, held_out = make_data(data, world=seed, families=families)
    batch = prompts or PROMPTS_PER_FAMILY * families
    return [
        f"data.train_files={train}",
        f"data.val_files={held_out}",
        f"data.seed={seed}",
        f"data.train_batch_size={batch}",
        # A step's episodes are computed at once.
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={batch * ROLLOUTS}",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={batch * ROLLOUTS}",
        f"comprl.bank.capacity={ENTRIES_PER_RULE * RULES_PER_FAMILY * families}",
        f"trainer.total_training_steps={steps}",
        f"trainer.test_freq={every}",
        f"trainer.save_freq={every}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, train, and report."""
    parser = argparse.ArgumentParser(prog="python -m recipes.miniature.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--families", type=int, nargs="+", default=[3], choices=(1, 2, 3), help="default: 3")
    parser.add_argument(
        "--arms",
        nargs="+",
        default=["baseline", "static_online", "complementary"],
        choices=list(ARMS),
        metavar="ARM",
        help=f"of {', '.join(ARMS)}; default: baseline static_online complementary",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], help="worlds; default: 1 2")
    parser.add_argument("--steps", type=int, default=60, help="actor steps of each run (default: 60)")
    parser.add_argument("--every", type=int, default=30, help="steps between evaluations (default: 30)")
    parser.add_argument("--prompts", type=int, help="prompts per step (default: 4 of each family)")
    parser.add_argument("--setting", choices=NAMES, default="plain", help="models and mechanisms")
    parser.add_argument("--models", type=Path, help="folder of other models than the setting's")
    parser.add_argument("--output", type=Path, help="folder of all files (default: outputs/miniature, -wide or -full)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides of all runs")
    options = parser.parse_intermixed_args(arguments)
    setting = SETTINGS[options.setting]
    if not setting.mechanisms and (absent := [arm for arm in options.arms if arm in MECHANISM_ARMS]):
        parser.error(f"{' and '.join(absent)} would be complementary: only --setting full merges and asks")
    suffix = "" if options.setting == "plain" else f"-{options.setting}"
    output: Path = (options.output or ROOT / f"outputs/miniature{suffix}").resolve()
    models: Path = options.models or MODELS / options.setting
    set_environment(output, models)
    if not prepare_environment() or not _checked(models, output, setting):
        return 1
    failed = _train(options, setting, output)
    from recipes.miniature.report import report

    report(output)
    return 1 if failed else 0


def _checked(models: Path, output: Path, setting: Setting) -> bool:
    """Check the models, once for an output folder, and return whether they may be trained."""
    from recipes.miniature import check, check_mechanisms

    files = [models / name / "model.safetensors" for name in ("actor", "extractor")]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        print(f"error: there is no {missing[0]}; make it with python -m recipes.miniature.prepare", file=sys.stderr)
        return False
    expected = check.EXPECTED | (check_mechanisms.EXPECTED if setting.mechanisms else {})
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    stored = output / "check.json"
    checked = json.loads(stored.read_text()) if stored.exists() else {"models": "", "figures": {}}
    if checked["models"] != digest or not expected.keys() <= checked["figures"].keys():
        print("Checking the warm-started models …", flush=True)
        measured = check.check(models, asks=setting.mechanisms)
        if setting.mechanisms:
            measured |= check_mechanisms.check_mechanisms(models)
        checked = {"models": digest, "figures": measured}
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(checked))
    figures = checked["figures"]
    print(f"Warm-started models, in unseen worlds:\n{check.show(figures)}", flush=True)
    wrong = check.problems(figures, expected)
    if wrong:
        print("error: the models are not where the miniature has to begin:\n  " + "\n  ".join(wrong), file=sys.stderr)
    return not wrong


def _train(options: argparse.Namespace, setting: Setting, output: Path) -> bool:
    """Train what has not finished; returns whether a run failed."""
    from verl_comprl.sweep import Run

    runs: list[Run] = []
    fillings: list[Run] = []
    for seed in options.seeds:
        for families in options.families:
            shared = shared_overrides(
                output / "data",
                families=families,
                seed=seed,
                steps=options.steps,
                every=options.every,
                prompts=options.prompts,
            )
            for arm in options.arms:
                overrides = [*shared, *ARMS[arm]]
                if arm == "offline":
                    name = run_name("filling", families, seed, options.prompts)
                    fillings.append(Run(name, (*shared, *filling())))
                    overrides.append(initial_bank(output / "runs" / name))
                runs.append(Run(run_name(arm, families, seed, options.prompts), (*overrides, *options.overrides)))
    return any(_sweep(part, output, setting.config) for part in (fillings, runs) if part)


def _sweep(runs: Sequence[Any], output: Path, config: str) -> bool:
    from verl_comprl import sweep

    records = sweep.run(
        runs,
        config_dir=ROOT / "recipes",
        config_name=config,
        results=output / "runs.jsonl",
    )
    return any(record["status"] != "finished" for record in records)


if __name__ == "__main__":
    sys.exit(main())
