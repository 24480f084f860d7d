"""Commands of README and docs that no test of the pages executes, and what tests them instead."""

from fnmatch import fnmatchcase

from documented import Command

NOT_RUN = {
    # Installation and the repository's own targets.
    "make setup": "changes the installation; every target that CI calls begins with it",
    "make quickstart": "installs, then trains for minutes; what it trains, in fewer steps: "
    "tests/recipes/test_quickstart_run.py",
    "make smollm2": "installs packages, then trains for an hour; a step where they are installed: "
    "tests/recipes/test_recipe_runs.py",
    "make miniature": "trains for an hour; one of its runs, in fewer steps: tests/recipes/test_learning.py",
    "make check": "runs a part of make test",
    "make test": "runs this test; called by .github/workflows/test.yml",
    "make long": "runs tests for hours; called by .github/workflows/long.yml",
    "make chaos": "two hours of tests that make test or make long run shorter: tests/chaos/test_random_faults.py, "
    "tests/chaos/test_killed_driver.py",
    "make lint": "make test begins with it",
    "make docs": "builds what tests/docs/test_site.py builds; called by .github/workflows/docs.yml",
    "make dist": "builds what tests/test_wheel.py builds; called by .github/workflows/release.yml",
    "make audit": "needs a network; called by .github/workflows/audit.yml",
    "pip install": "changes the installation; that the extra exists: tests/docs/test_commands.py",
    "apt-get install": "changes the machine",
    ".venv/bin/pre-commit install": "changes the clone",
    "source .venv/bin/activate": "for a shell",
    "python -m asyncio": "for a person who types",
    "python -m verl_comprl.config.generate": "writes into the clone; what it writes: tests/config/test_generate.py",
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
    "comprl bank distill*--local": "serves a model of the hub with vLLM: tests/cli/test_cli_local_model.py",
    "comprl bank serve*--transport http": "serves until it is interrupted: tests/cli/bank/test_cli_bank_serve.py",
    "comprl bank import --url": "needs a Qdrant server: tests/cli/bank/test_cli_bank_server.py",
    # Runs, recipes and measurements.
    "bash recipes/run.sh": "trains: tests/recipes/test_recipe_runs.py, tests/recipes/test_mix_run.py",
    "python -m recipes.miniature.run": "trains; with fewer steps: tests/recipes/test_learning.py",
    "python -m recipes.miniature.prepare": "trains the models, which no test does; what it has made: "
    "tests/recipes/test_shipped_models.py",
    "python -m recipes.miniature.report": "reads runs of hours; others: tests/recipes/test_miniature_report.py",
    "python -m recipes.miniature.over_families": "writes into docs; elsewhere: tests/recipes/test_miniature_report.py",
    "python -m recipes.smollm2.prepare": "needs a package and a quarter of an hour; its parts: "
    "tests/recipes/test_smollm2.py, tests/recipes/test_smollm2_warm_up.py",
    "python -m recipes.smollm2.measure": "needs that model; another one: tests/recipes/test_smollm2_measure.py",
    "python -m verl_comprl.train": "trains: tests/trainer/test_training_run.py",
    "python -m verl_comprl.sweep": "trains: tests/trainer/test_own_engines_run.py",
    "python -m verl_comprl.launch": "needs nodes: tests/launch/test_launch.py",
    "torchrun": "needs nodes: tests/launch/test_launch.py",
    "sbatch": "needs a cluster; its settings: tests/docs/test_commands.py",
    "ray job submit": "needs a cluster; its settings: tests/docs/test_commands.py",
    "python -m benchmarks.embedding": "measures; few rounds: tests/benchmarks/test_embedding_benchmark.py",
    "python -m benchmarks.long_episodes": "measures; few rounds: tests/benchmarks/test_long_episodes.py",
    "python -m benchmarks.record": "measures for a minute: tests/benchmarks/test_record_benchmark.py",
    "python -m benchmarks.retrieval": "measures for minutes; small banks: tests/benchmarks/test_retrieval_benchmark.py",
    "python -m benchmarks.environments": "measures for minutes; one environment: "
    "tests/benchmarks/test_environments_benchmark.py",
    "python -m benchmarks.server_memory": "measures for minutes; few lengths: tests/benchmarks/test_server_memory.py",
    "python -m benchmarks.update_memory": "measures for a minute; few rows: tests/benchmarks/test_update_memory.py",
    "python -m benchmarks.gpu_memory": "prints what is computed in tests/recipes/test_gpu_layouts.py",
    "python -m benchmarks.cores": "measures for minutes; one round: tests/benchmarks/test_cores.py",
    "python -m benchmarks.viewer_pictures": "needs a browser, writes into docs; its window: "
    "tests/benchmarks/test_viewer_pictures.py",
    "python -m benchmarks.viewer": "needs a browser; its exit code, and a visit where there is one: "
    "tests/benchmarks/test_viewer_benchmark.py, tests/viewer/test_viewer_size.py",
    "python -m benchmarks.imitation": "needs a run of hours; episodes of examples/run: "
    "tests/benchmarks/test_imitation.py",
    # No test starts the engines or servers of these.
    "python -m benchmarks.arms": "trains for hours; its tasks, configs and tables: "
    "tests/benchmarks/test_arms_benchmark.py",
    "python -m benchmarks.overhead": "trains for minutes; its tables, its extractor: "
    "tests/benchmarks/test_overhead.py, tests/benchmarks/test_overhead_table.py, tests/benchmarks/test_recorded.py",
    "python -m benchmarks.scale": "starts a Ray for minutes; its extractor, its table: tests/benchmarks/test_scale.py",
    "python -m benchmarks.soak": "trains for hours; its samples, its tables: tests/benchmarks/test_soak.py",
    "python -m benchmarks.planted": "trains for half an hour; its banks, its tables: tests/benchmarks/test_planted.py",
    "python -m env_adapters.alfworld.generator": "makes games for minutes: "
    "tests/env_adapters/alfworld/test_alfworld_generator.py",
    "python -m env_adapters.webshop.catalogue": "executed by tests/env_adapters/webshop/test_webshop_catalogue.py",
    "comprl env attempts": "needs a model's endpoint: tests/cli/test_cli_env_attempts.py",
    "python -m env_adapters.swebench.expert": "executed by tests/env_adapters/swebench/test_swebench_environment.py",
    "python -m env_adapters.swebench.select": "needs rollouts: tests/env_adapters/swebench/test_swebench_instances.py",
    "python examples/execute.py": "runs notebooks for minutes: tests/examples/test_execute.py",
}
"""Beginning of a command, as a pattern of ``fnmatch`` → why it is not run here, with the files that test it."""


def not_run_as(command: Command) -> str | None:
    """Return the pattern of the table that a command has; None if it is to be run."""
    words = " ".join(command.words)
    return next((pattern for pattern in NOT_RUN if fnmatchcase(words, f"{pattern}*")), None)
