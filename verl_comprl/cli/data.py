"""Command ``comprl data``: writes tasks of an environment as a parquet dataset for verl."""

import argparse
import inspect
import json
from pathlib import Path

from verl_comprl.cli.environment_options import add_environment, chosen_options
from verl_comprl.nearest import did_you_mean


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser(
        "data",
        help="write tasks of an environment as a dataset",
        description="Write tasks of an environment as a parquet dataset, one row per task, to train or evaluate on.",
    )
    add_environment(parser)
    parser.add_argument(
        "--split", required=True, choices=("train", "val"), help="training or validation tasks; no task is in both"
    )
    parser.add_argument(
        "--count", type=int, help="number of tasks (default: all, if the environment has a finite set of tasks)"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed; another seed gives other tasks (default: 0)")
    parser.add_argument("--output", type=Path, required=True, help="parquet file to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the dataset.

    Raises:
        ValueError: If an option is missing, unknown or has a bad value, or ``--output`` is a folder.
    """
    if options.output.is_dir():
        raise ValueError(
            f"--output {options.output} is a folder; name a file, such as {options.output / 'tasks.parquet'}"
        )
    import pyarrow as pa
    import pyarrow.parquet as pq

    from env_adapters import dataset_builder

    choices = {"split": options.split, "seed": options.seed} | chosen_options(options)
    if options.count is not None:
        choices["count"] = options.count
    builder = dataset_builder(options.environment)
    parameters = inspect.signature(builder).parameters
    if unknown := sorted(choices.keys() - parameters.keys()):
        raise ValueError(
            f"environment {options.environment!r} has no option {unknown[0]!r}; "
            f"{did_you_mean(unknown[0], parameters)}its options: {', '.join(parameters)}"
        )
    missing = [item.name for item in parameters.values() if item.default is item.empty and item.name not in choices]
    if missing:
        name = missing[0].replace("_", "-")
        flag = f"--{name}" if name in ("variant", "count", "max-turns") else f"-o {missing[0]}=…"
        raise ValueError(f"environment {options.environment!r} needs {flag}")
    rows = builder(**choices)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), options.output)
    print(json.dumps({"rows": len(rows), "data_source": rows[0]["data_source"], "output": str(options.output)}))
    return 0
