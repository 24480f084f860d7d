"""Runs the miniature: ``python -m recipes.miniature.run --families 3 --arms baseline complementary --seeds 1 2``.

Checks the two models of ``models/``, makes the worlds, trains every arm with every seed on engines that are started
once, and prints tables and figures. What has finished is not repeated, and with more steps it continues where it ended.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes.miniature.arms import ARMS, MECHANISM_ARMS, filling, initial_bank
from recipes.miniature.data import make_data
from recipes.miniature.settings import FIRST_WORLD, NAMES, PROMPTS_PER_FAMILY, SETTINGS, Name, Setting
from verl_comprl.train import prepare_environment

ROOT = Path(__file__).parents[2]
MODELS = ROOT / "recipes/miniature/models"
"""For each setting actor and extractor as ``prepare`` made them, with which the published numbers were measured."""
ROLLOUTS = 8
"""Rollouts of a prompt: verl_comprl's default."""
ENTRIES_PER_RULE = 24
"""With 12, rules that were solved filled the bank within six steps, and others were lost (docs/miniature.md)."""
RULES_PER_FAMILY = 8


def set_environment(output: Path, models: Path = MODELS / "plain") -> None:
    """Set the variables that miniature.yaml reads: folder of all files, and of the models."""
    os.environ |= {
        "COMPRL_MINIATURE": str(output),
        "COMPRL_MODELS": str(models.resolve()),
        "HF_HUB_OFFLINE": "1",
    }


def run_name(arm: str, families: int, seed: int, prompts: int | None = None, updates: int = 1) -> str:
    """Return the name of a run, which is also that of its folder; see ``rows.Row``."""
    batch = f"{families}x{prompts}" if prompts else str(families)
    return f"{arm}-{batch}u{updates}-{seed}" if updates > 1 else f"{arm}-{batch}-{seed}"


def shared_overrides(
    data: Path, *, families: int, seed: int, steps: int, every: int, prompts: int | None = None, updates: int = 1
) -> list[str]:
    """Return the overrides that all arms share.

    Args:
        data: Folder of the worlds.
        families: Number of task families that share the bank.
        seed: Chooses the world and the order of tasks.
        steps: Actor steps.
        every: Steps between evaluations, and between checkpoints.
        prompts: Prompts per step; None for four of each family.
        updates: Optimizer steps of the actor on a step's episodes; divides the prompts.
    """
    train, held_out = make_data(data, world=seed, families=families)
    batch = prompts or PROMPTS_PER_FAMILY * families
    mini_batch = batch // updates
    several = [  # otherwise the recipe's default, which is the whole batch of a local update with any trainer
        f"actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}",
        # With self-distillation verl pads the batch at its end: a mini-batch could consist of padding.
        "actor_rollout_ref.actor.shuffle=true",
        # From the second step on the ratio of Eq. 4 is not 1: without its clip failed actions are pushed down without a
        # bound, and actors collapsed (docs/results.md).
        "actor_rollout_ref.actor.policy_loss.loss_mode=vanilla",
        "algorithm.rollout_correction.bypass_mode=false",
    ]
    return [
        *(several if updates > 1 else ()),
        f"data.train_files={train}",
        f"data.val_files={held_out}",
        f"data.seed={seed}",
        f"data.train_batch_size={batch}",
        # One prompt at a time: an update took 2.1 s on two cores, with 96 rollouts at once 2.4 s.
        f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={ROLLOUTS}",
        f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={ROLLOUTS}",
        f"comprl.bank.capacity={ENTRIES_PER_RULE * RULES_PER_FAMILY * families}",
        f"trainer.total_training_steps={steps}",
        f"trainer.test_freq={every}",
        f"trainer.save_freq={every}",
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, train, and report.

    Returns:
        The exit code, as that of a sweep; also 1 if the models are not where the miniature has to begin.
    """
    parser = argparse.ArgumentParser(prog="python -m recipes.miniature.run", description=__doc__.partition("\n")[0])
    parser.add_argument("--families", type=int, nargs="+", default=[3], choices=(1, 2, 3), help="default: 3")
    parser.add_argument(
        "--arms",
        nargs="+",
        # Those with an extractor first: its engine then starts beside the actor's, not after the first run.
        default=["complementary", "static_online", "baseline"],
        choices=list(ARMS),
        metavar="ARM",
        help=f"of {', '.join(ARMS)}; default: complementary static_online baseline",
    )
    parser.add_argument("--seeds", type=_number(0), nargs="+", default=[1, 2], help="worlds; default: 1 2")
    parser.add_argument("--steps", type=_number(1), default=60, help="actor steps of each run (default: 60)")
    parser.add_argument("--every", type=_number(1), default=30, help="steps between evaluations (default: 30)")
    parser.add_argument("--prompts", type=_number(1), help="prompts per step (default: 4 of each family)")
    parser.add_argument(
        "--updates", type=_number(1), default=1, help="optimizer steps of the actor on a step's episodes (default: 1)"
    )
    parser.add_argument("--setting", choices=NAMES, default="plain", help="models and mechanisms")
    parser.add_argument("--models", type=Path, help="folder of other models than the setting's")
    parser.add_argument("--output", type=Path, help="folder of all files (default: outputs/miniature, -wide or -full)")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="Hydra overrides of all runs")
    options = parser.parse_intermixed_args(arguments)
    setting = SETTINGS[options.setting]
    if not setting.mechanisms and (absent := [arm for arm in options.arms if arm in MECHANISM_ARMS]):
        parser.error(f"{' and '.join(absent)} would be complementary: only --setting full merges and asks")
    for prompts in (options.prompts or PROMPTS_PER_FAMILY * families for families in options.families):
        if prompts % options.updates:
            parser.error(f"--updates {options.updates} does not divide the {prompts} prompts of a step")
    suffix = "" if options.setting == "plain" else f"-{options.setting}"
    output: Path = (options.output or ROOT / f"outputs/miniature{suffix}").resolve()
    models: Path = options.models or MODELS / options.setting
    set_environment(output, models)
    if not prepare_environment() or not _checked(models, output, options.setting):
        return 1
    from verl_comprl.config.reading import ConfigError

    try:
        code = _train(options, setting, output)
    except ConfigError as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if code != 130:
        from recipes.miniature.report import report

        report(output)
    return code


def _number(least: int) -> Callable[[str], int]:
    """Return a parser of integers from ``least`` to below the worlds of the warm start."""

    def number(text: str) -> int:
        if not text.isdecimal() or not least <= int(text) < FIRST_WORLD:
            raise argparse.ArgumentTypeError(f"{text!r} is not an integer from {least} to {FIRST_WORLD - 1}")
        return int(text)

    return number


def _checked(models: Path, output: Path, name: Name) -> bool:
    """Check the models, once for an output folder, and return whether they may be trained."""
    from recipes.miniature import check, check_mechanisms, check_retrieval
    from recipes.miniature.examples import digest_of_examples

    setting = SETTINGS[name]
    files = [models / model / "model.safetensors" for model in ("actor", "extractor")]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        command = f"python -m recipes.miniature.prepare --setting {name} --output {models}"
        print(f"error: there is no {missing[0]}; make it with\n  {command}", file=sys.stderr)
        return False
    expected = check.EXPECTED | check_retrieval.EXPECTED | (check_mechanisms.EXPECTED if setting.mechanisms else {})
    expected |= setting.expected
    # A changed prompt changes what the same weights do.
    weights = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    digest = f"{weights} {digest_of_examples(models / 'actor', setting)}"
    stored = output / "check.json"
    checked = json.loads(stored.read_text()) if stored.exists() else {"models": "", "figures": {}}
    if checked["models"] != digest or not expected.keys() <= checked["figures"].keys():
        print("Checking models and retrieval …", flush=True)
        measured = check.check(models, asks=setting.mechanisms) | check_retrieval.check_retrieval()
        if setting.mechanisms:
            measured |= check_mechanisms.check_mechanisms(models)
        checked = {"models": digest, "figures": measured}
        stored.parent.mkdir(parents=True, exist_ok=True)
        stored.write_text(json.dumps(checked))
    figures = checked["figures"]
    print(f"Warm-started models in unseen worlds, and retrieval by title style:\n{check.show(figures)}", flush=True)
    wrong = check.problems(figures, expected)
    if wrong:
        print("error: the models are not where the miniature has to begin:\n  " + "\n  ".join(wrong), file=sys.stderr)
    return not wrong


def _train(options: argparse.Namespace, setting: Setting, output: Path) -> int:
    """Train what has not finished; returns the exit code of a sweep."""
    from verl_comprl.sweep import Run

    runs: list[Run] = []
    fillings: dict[str, Run] = {}
    """By the name of the run that starts with its bank."""
    for seed in dict.fromkeys(options.seeds):
        for families in dict.fromkeys(options.families):
            shared = shared_overrides(
                output / "data",
                families=families,
                seed=seed,
                steps=options.steps,
                every=options.every,
                prompts=options.prompts,
                updates=options.updates,
            )
            for arm in dict.fromkeys(options.arms):
                name = run_name(arm, families, seed, options.prompts, options.updates)
                overrides = [*shared, *ARMS[arm], *options.overrides]
                if arm == "offline":
                    filled = run_name("filling", families, seed, options.prompts, options.updates)
                    fillings[name] = Run(filled, (*shared, *options.overrides, *filling()))
                    overrides.append(initial_bank(output / "runs" / filled))
                runs.append(Run(name, tuple(overrides)))
    records = _sweep(list(fillings.values()), output, setting.config)
    empty = {name for name, record in zip(fillings, records, strict=False) if record["status"] != "finished"}
    statuses = {record["status"] for record in records}
    if "interrupted" not in statuses:
        records = _sweep([run for run in runs if run.name not in empty], output, setting.config)
        statuses |= {record["status"] for record in records}
    return 130 if "interrupted" in statuses else 1 if "failed" in statuses else 0


def _sweep(runs: Sequence[Any], output: Path, config: str) -> list[dict[str, Any]]:
    from verl_comprl import sweep

    if not runs:
        return []
    return sweep.run(runs, config_dir=ROOT / "recipes", config_name=config, results=output / "runs.jsonl")


if __name__ == "__main__":
    sys.exit(main())
