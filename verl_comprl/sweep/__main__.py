"""Command line of a sweep: ``python -m verl_comprl.sweep key=a,b …``."""

import argparse
import sys
from pathlib import Path

from verl_comprl.requirements import missing_is_one_line

with missing_is_one_line(__name__):
    from verl_comprl.compat import IncompatibleVerlError, import_verl
    from verl_comprl.config.reading import ConfigError
    from verl_comprl.errors import INTERRUPTED
    from verl_comprl.sweep.runs import Run, expand
    from verl_comprl.sweep.runs_file import read_runs
    from verl_comprl.sweep.sweep import run
    from verl_comprl.train import prepare_environment
    from verl_comprl.training import interrupt_on_signals

_DESCRIPTION = """\
Trains runs that differ in arm, seed, data or settings one after the other. The engines are started once; each run
begins with the models' initial weights. A run that has finished is not repeated when the same command is given again.

  python -m verl_comprl.sweep --config-dir recipes --config-name minihack_small/cpu \\
      arm=baseline,complementary data.seed=1,2,3 trainer.default_local_dir=outputs/arms
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a sweep and return the exit code: 1 if a run failed, 2 if a setting is wrong, 130 after an interruption."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_comprl.sweep",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config-dir", type=Path, help="folder of the recipe (default: this package's configs)")
    parser.add_argument("--config-name", default="comprl_trainer", help="the recipe (default: comprl_trainer)")
    parser.add_argument(
        "--runs", type=Path, metavar="FILE", help="YAML or JSON: a list of runs with name and overrides"
    )
    parser.add_argument(
        "--results", type=Path, help="file for the results (default: sweep.jsonl in the sweep's folder)"
    )
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="of all runs; a choice key=a,b makes a run for each value"
    )
    options = parser.parse_args(arguments)
    interrupt_on_signals()
    if not prepare_environment():
        return 0
    try:
        import_verl()
        given = read_runs(options.runs) if options.runs else [Run("")]
        runs = [expanded for each in given for expanded in expand(each, options.overrides)]
        records = run(runs, config_dir=options.config_dir, config_name=options.config_name, results=options.results)
    except (ConfigError, IncompatibleVerlError) as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    statuses = {record["status"] for record in records}
    return INTERRUPTED if "interrupted" in statuses else 1 if "failed" in statuses else 0


if __name__ == "__main__":
    sys.exit(main())
