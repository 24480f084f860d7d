"""Reader of the folder of a run, finished or still running: episodes, calls of the extractor, events, metrics."""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from verl_comprl.record.lines import Record, decode
from verl_comprl.record.step_files import StepFiles

EPISODES = "episodes"
CALLS = "extractor_calls"
EVENTS = "experience.jsonl"
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
FAILURES = "failures.jsonl"
TRAIN_LOG = "train.log"


class RunRecord:
    """What a run has left on disk; every method reads lazily and is empty where there is nothing."""

    def __init__(self, folder: str | Path) -> None:
        """Read the run in ``folder``.

        Raises:
            FileNotFoundError: If there is no such folder.
        """
        self.folder = Path(folder)
        if not self.folder.is_dir():
            wrong = "it is a file" if self.folder.exists() else "it does not exist"
            raise FileNotFoundError(f"{self.folder} is not a folder of a run: {wrong}")
        self._episodes = StepFiles(self.folder / EPISODES)
        self._calls = StepFiles(self.folder / CALLS)

    def steps(self) -> list[int]:
        """Return the steps that have episodes."""
        return self._episodes.steps()

    def episode_bytes(self) -> int:
        """Return how many bytes the episodes take on disk, compressed."""
        return self._episodes.size()

    def episodes(self, steps: Collection[int] | None = None) -> Iterator[Record]:
        """Yield the episodes in the order of steps.

        Args:
            steps: Only those of these steps.
        """
        yield from _of_steps(self._episodes, steps)

    def call_events(self, steps: Collection[int] | None = None) -> Iterator[Record]:
        """Yield the calls of the extractor, their uses and trainings as they were written."""
        yield from _of_steps(self._calls, steps)

    def calls(self) -> Iterator[Record]:
        """Yield each call of the extractor with its ``uses`` and ``trainings``; reads the files twice."""
        later: dict[str, dict[str, list[Record]]] = {}
        names = {"use": "uses", "trained": "trainings"}
        for event in self.call_events():
            if event.get("event") in names:
                of_call = later.setdefault(event["call"], {"uses": [], "trainings": []})
                of_call[names[event["event"]]].append(event)
        seen: set[str] = set()
        for event in self.call_events():
            # A distillation that is repeated after a resume has the id of the first one.
            if event.get("event") == "call" and event["call"] not in seen:
                seen.add(event["call"])
                yield {**event, **later.get(event["call"], {"uses": [], "trainings": []})}

    def events(self) -> Iterator[Record]:
        """Yield the events of the bank."""
        return self._log(EVENTS)

    def metrics(self) -> Iterator[Record]:
        """Yield ``step`` and ``data`` of each line that says its step."""
        return (metrics for line in self._log(METRICS) if (metrics := step_metrics(line)) is not None)

    def evaluations(self) -> Iterator[Record]:
        """Yield the evaluations that say after which step they were made."""
        return (line for line in self._log(EVALUATIONS) if isinstance(line.get("step"), int))

    def failures(self) -> Iterator[Record]:
        """Yield the failed rollouts."""
        return self._log(FAILURES)

    def _log(self, name: str) -> Iterator[Record]:
        file = self.folder / name
        if file.exists():
            with file.open("rb") as lines:
                yield from decode(lines)


def step_metrics(record: Record, wanted: Callable[[str], bool] = lambda name: True) -> Record | None:
    """Return ``step`` and ``data`` of a line of metrics, with nothing but numbers: NaN and infinities are null there.

    None for a line that does not say its step.

    Args:
        record: The line.
        wanted: Says of a metric's name whether to keep it.
    """
    step, data = record.get("step"), record.get("data")
    if not isinstance(step, int):
        return None
    items = data.items() if isinstance(data, dict) else ()
    numbers = {name: float(value) for name, value in items if wanted(name) and isinstance(value, int | float)}
    return {"step": step, "data": numbers}


def _of_steps(files: StepFiles, steps: Collection[int] | None) -> Iterator[Record]:
    for step in files.steps():
        if steps is None or step in steps:
            yield from decode(files.read(step))
