"""Commands of README and docs that no test of the pages executes, and what tests them instead."""

from fnmatch import fnmatchcase

from documented import Command

NOT_RUN = {
    # Installation and the repository's own targets.
    "make ": "what CI calls, or a run of hours; that the target exists: tests/docs/test_commands.py",
    "pip install": "changes the installation; that the extra exists: tests/docs/test_commands.py",
    "apt-get install": "changes the machine",
    ".venv/bin/pre-commit install": "changes the clone",
    "source .venv/bin/activate": "for a shell",
    "alfworld-download": "a download of another project",
    "jupyter lab": "serves until it is interrupted",
    "tensorboard": "another project's, serves until it is interrupted",
    # Commands of ours.
    "comprl doctor": "starts a Ray, or needs a device or servers: tests/cli/doctor/test_doctor.py, "
    "tests/cli/doctor/test_doctor_run.py, tests/cli/doctor/test_doctor_bank.py",
    "comprl train [!-]": "trains; that each complete one would start: tests/docs/test_training_commands.py",
    "arm=static_online": "continues such a command: tests/docs/test_commands.py",
    "comprl evaluate": "starts an engine: tests/trainer/test_training_run.py",
    "comprl export": "needs trained models: tests/cli/test_cli_export.py",
    "comprl data alfworld": "games are made first, for minutes: tests/env_adapters/alfworld/test_alfworld_dataset.py",
    "comprl data swebench": "needs a data set of repositories: tests/env_adapters/swebench/test_swebench_instances.py",
    "comprl data": "executed by tests/docs/test_commands.py",
    "comprl bank serve*--transport http": "serves until it is interrupted: tests/cli/bank/test_cli_bank_serve.py",
    "comprl bank import --url": "needs a Qdrant server: tests/cli/bank/test_cli_bank_server.py",
    # Runs, recipes and measurements.
    "bash recipes/run.sh": "trains: tests/recipes/test_recipe_runs.py, tests/recipes/test_mix_run.py",
    "python -m recipes.": "trains, or reads what was trained: tests/recipes/test_miniature.py, "
    "tests/recipes/test_miniature_report.py, tests/recipes/test_smollm2_measure.py",
    "python -m verl_comprl.train": "trains: tests/trainer/test_training_run.py",
    "python -m verl_comprl.sweep": "trains: tests/sweep/test_sweep_runs.py",
    "torchrun": "needs nodes: tests/launch/test_launch.py",
    "sbatch": "needs a cluster; its settings: tests/docs/test_commands.py",
    "ray job submit": "needs a cluster; its settings: tests/docs/test_commands.py",
    "python -m benchmarks.": "measures for minutes: tests/benchmarks/test_overhead.py, tests/benchmarks/test_scale.py, "
    "tests/benchmarks/test_planted.py",
    "python -m env_adapters.alfworld.generator": "makes games for minutes: "
    "tests/env_adapters/alfworld/test_alfworld_generator.py",
    "python -m env_adapters.swebench.": "needs repositories: tests/env_adapters/swebench/test_swebench_environment.py",
    "python examples/execute.py": "runs notebooks for minutes: tests/examples/test_execute.py",
}
"""Beginning of a command, as a pattern of ``fnmatch`` → why it is not run here, with the files that test it."""


def not_run_as(command: Command) -> str | None:
    """Return the pattern of the table that a command has; None if it is to be run."""
    words = " ".join(command.words)
    return next((pattern for pattern in NOT_RUN if fnmatchcase(words, f"{pattern}*")), None)
