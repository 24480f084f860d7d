"""Runs that differ in arm, seed, data or settings, one after the other on the same engines, which are started once."""

import sys

from verl_comprl.requirements import missing_is_one_line

# Python imports a package before its __main__, which has the same block; it calls the program "-m" meanwhile.
with missing_is_one_line("__main__" if sys.argv[:1] == ["-m"] else __name__):
    from verl_comprl.sweep.runs import Run, expand
    from verl_comprl.sweep.runs_file import read_runs
    from verl_comprl.sweep.sweep import run

__all__ = ["Run", "expand", "read_runs", "run"]
