"""Collects one run into the blocks of the page."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from verl_comprl.record import RunRecord
from verl_comprl.record.reader import TRAIN_LOG
from verl_comprl.record.settings_file import SETTINGS, read_settings
from verl_comprl.viewer.blocks import Block, dump, pack
from verl_comprl.viewer.calls import call_blocks
from verl_comprl.viewer.curves import curves
from verl_comprl.viewer.entries import Entries
from verl_comprl.viewer.episodes import Episodes

FACTS = {
    "arm": "comprl.arm",
    "actor": "actor_rollout_ref.model.path",
    "extractor": "extractor.model.path",
    "rollouts per prompt": "actor_rollout_ref.rollout.n",
    "prompts per step": "data.train_batch_size",
    "trainer": "trainer.v1.trainer_mode",
    "steps": "trainer.total_training_steps",
}
"""Settings in a run's heading, by their labels."""

FROZEN = {"endpoint": "comprl.extractor.endpoint.model", "actor": "actor_rollout_ref.model.path"}
"""Settings that name the extractor's model where it is none of the run's own, by back end."""

_PATHS = ("actor", "extractor")

LARGE = 32 * 2**20
"""Bytes of a run's episodes on disk, which the page takes about twice of, from which on not all turns are kept."""

KEPT = 5000
"""Episodes whose turns are kept of such a run."""

_COUNTED = 9
"""Steps whose episodes are counted for how many a step has; of a large run, counting all takes seconds."""


class CollectedRun:
    """What the page shows of one run."""

    def __init__(self, folder: Path, name: str, kept: int | None) -> None:
        """Read the run.

        Args:
            folder: The run's folder.
            name: The run's name in the page.
            kept: Episodes whose turns are kept, about; 0 keeps all, None what a browser is comfortable with. Of the
                others there is a row only.

        Raises:
            FileNotFoundError: If the folder does not exist or holds nothing of a run.
        """
        self._record = record = RunRecord(folder)
        metrics = list(record.metrics())
        chosen = _chosen_steps(record, kept)
        self._entries, self._episodes = Entries(), Episodes()
        self._entries.read_events(record.events())
        for episode in record.episodes():
            self._episodes.add(episode, self._entries, chosen is None or episode.get("step") in chosen)
        self._entries.compare(self._episodes.free)
        if not metrics and not len(self._entries) and not len(self._episodes):
            if any((folder / name).is_file() for name in (SETTINGS, TRAIN_LOG)):
                raise FileNotFoundError(f"{folder} has nothing recorded yet; try again after the first step")
            raise FileNotFoundError(
                f"{folder} is not the folder of a run: no metrics.jsonl, no episodes, no experience"
            )
        self.last_step = max([line["step"] for line in metrics] + record.steps(), default=0)
        sizes = [line["data"]["comprl/bank/size"] for line in metrics if "comprl/bank/size" in line["data"]]
        self._summary = {
            "name": name,
            "folder": str(folder),
            "facts": _facts(folder),
            "step": self.last_step,
            "curves": curves(metrics, record.evaluations(), self._episodes.trained),
            "entries": len(self._entries),
            "given": self._entries.given,
            "copies": self._entries.copies(),
            "kept": self._episodes.kept,
            "present": sizes[-1] if sizes else self._entries.present,
            "failures": dict(_failures(record) or self._episodes.failures),
        }

    @property
    def curve_titles(self) -> list[str]:
        """Titles of the run's curves, in their order."""
        return [curve["title"] for curve in self._summary["curves"]]

    def blocks(self, name: str) -> Iterator[Block]:
        """Return the blocks: ``<name>``, and the tables ``<name>/entries``, ``<name>/episodes``, ``<name>/calls``."""
        yield pack(name, dump(self._summary))
        yield from self._entries.blocks(f"{name}/entries")
        yield from self._episodes.blocks(f"{name}/episodes")
        yield from call_blocks(f"{name}/calls", self._record.calls())


def _failures(record: RunRecord) -> Counter[str]:
    """Count all failed rollouts by boundary; not every episode need be on record."""
    return Counter(str(line.get("boundary", "")) for line in record.failures())


def _chosen_steps(record: RunRecord, kept: int | None) -> set[int] | None:
    """Return the steps whose episodes are kept in full, evenly spaced with the last one; None for all."""
    steps = record.steps()
    if kept is None:
        kept = KEPT if record.episode_bytes() > LARGE else 0
    if not kept or not steps:
        return None
    # The median: a step may be unfinished, or have the episodes of an evaluation too.
    per_step = median(sum(1 for _ in record.episodes([step])) for step in _spaced(steps, min(_COUNTED, len(steps))))
    count = max(1, int(kept // max(1, per_step)))
    return None if count >= len(steps) else {*_spaced(steps, count)}


def _spaced(steps: Sequence[int], count: int) -> list[int]:
    return [steps[len(steps) - 1 - index * len(steps) // count] for index in range(count)]


def _facts(folder: Path) -> list[tuple[str, Any]]:
    """Return label and value of the settings in the heading."""
    try:
        config = read_settings(folder / SETTINGS)
    except (OSError, ValueError):
        return []
    paths = FACTS | {"extractor": FROZEN.get(_setting(config, "comprl.extractor.backend"), FACTS["extractor"])}
    if _setting(config, "comprl.experience") is False:  # its model is in the file all the same, and never started
        del paths["extractor"]
    found = []
    for label, path in paths.items():
        value = _setting(config, path)
        if value is not None and value != "":
            found.append((label, Path(str(value)).name if label in _PATHS else value))
    return found


def _setting(config: Any, path: str) -> Any:
    for key in path.split("."):
        config = config.get(key) if isinstance(config, dict) else None
    return config
