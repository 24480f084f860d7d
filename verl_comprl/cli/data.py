"""``comprl data <environment>``: dataset rows of an environment as parquet."""

import argparse
import inspect
import json
from pathlib import Path


def add_parser(commands: argparse._SubParsersAction) -> None:
    """Add the sub-command."""
    parser = commands.add_parser("data", help="make a dataset of an environment's tasks")
    parser.add_argument("environment", help="name of the environment, such as minihack")
    parser.add_argument("--variant", help="variant of it, such as room-ultimate")
    parser.add_argument("--split", required=True, choices=("train", "val"), help="their tasks are disjoint")
    parser.add_argument("--count", type=int, required=True, help="number of tasks")
    parser.add_argument("--seed", type=int, default=0, help="another seed gives other tasks (default 0)")
    parser.add_argument("--max-turns", type=int, default=30, help="turns per episode (default 30)")
    parser.add_argument("--output", type=Path, required=True, help="parquet file to write")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from env_adapters import dataset_builder

    choices = {"split": options.split, "count": options.count, "seed": options.seed, "max_turns": options.max_turns}
    if options.variant is not None:
        choices["variant"] = options.variant
    builder = dataset_builder(options.environment)
    parameters = inspect.signature(builder).parameters.values()
    missing = [item.name for item in parameters if item.default is item.empty and item.name not in choices]
    if missing:
        raise ValueError(f"environment {options.environment!r} needs --{missing[0].replace('_', '-')}")
    rows = builder(**choices)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), options.output)
    print(json.dumps({"rows": len(rows), "data_source": rows[0]["data_source"], "output": str(options.output)}))
    return 0
