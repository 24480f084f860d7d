"""Runs that differ in arm, seed, data or settings, one after the other on the same engines, which are started once."""

from verl_comprl.sweep.runs import Run, expand
from verl_comprl.sweep.runs_file import read_runs
from verl_comprl.sweep.sweep import run

__all__ = ["Run", "expand", "read_runs", "run"]
