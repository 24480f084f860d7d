"""Takes the files of a run back to the checkpoint from which it continues."""

from pathlib import Path

from verl_comprl.record.prefix import Prefix
from verl_comprl.record.reader import CALLS, EPISODES, EVALUATIONS, EVENTS, FAILURES, METRICS
from verl_comprl.record.step_files import StepFiles
from verl_comprl.trainer.run_folder.log import cut_log, rewind_log


def rewind_run(folder: Path, step: int, events: Prefix | None = None) -> None:
    """Put aside what the run in ``folder`` wrote after a checkpoint.

    Args:
        folder: The run's.
        step: The checkpoint's; -1 if the run is new here, which begins with nothing.
        events: The events of the bank that the checkpoint holds, whatever their steps; None if it does not say.
    """
    for name in (EVALUATIONS, FAILURES, METRICS):
        rewind_log(folder / name, step)
    if events is None or not cut_log(folder / EVENTS, events):
        rewind_log(folder / EVENTS, step)
    for name in (EPISODES, CALLS):
        StepFiles(folder / name).rewind(step)
