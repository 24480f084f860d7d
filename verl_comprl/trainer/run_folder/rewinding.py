"""Takes the files of a run back to the step from which it continues."""

from pathlib import Path

from verl_comprl.record.reader import CALLS, EPISODES, EVALUATIONS, EVENTS, FAILURES, METRICS
from verl_comprl.record.step_files import StepFiles
from verl_comprl.trainer.run_folder.log import rewind_log


def rewind_run(folder: Path, step: int) -> None:
    """Put aside what the run in ``folder`` wrote after ``step``; -1 for a new run, which begins with nothing."""
    for name in (EVALUATIONS, FAILURES, EVENTS, METRICS):
        rewind_log(folder / name, step)
    for name in (EPISODES, CALLS):
        StepFiles(folder / name).rewind(step)
