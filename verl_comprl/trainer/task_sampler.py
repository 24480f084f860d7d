"""Dataset sampler that gives each task of a mix an equal share of every batch, whatever the number of its rows."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler
from torchdata.stateful_dataloader import StatefulDataLoader


class TaskSampler(Sampler[int]):
    """Draws from the tasks in turn: in any consecutive draws, the numbers of rows per task differ by at most one.

    Each task's rows are drawn in random order, all of them before any is drawn again, so rows of a small task repeat
    more often. An epoch has as many draws as the dataset has rows. The iterators save and restore their position, as
    torchdata's ``StatefulDataLoader`` requires.
    """

    def __init__(self, tasks: Sequence[str], *, seed: int = 0) -> None:
        """Group the rows by task.

        Args:
            tasks: Task of each row of the dataset.
            seed: Determines the order.
        """
        self.rows = [[row for row, task in enumerate(tasks) if task == name] for name in sorted(set(tasks))]
        self.size = len(tasks)
        self.start = 0
        """Position at which the next epoch starts."""
        self._seed = seed
        self._orders: dict[int, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        """Return the number of draws per epoch."""
        return self.size

    def __iter__(self) -> Iterator[int]:
        """Return an iterator over the next epoch."""
        return _Draws(self)

    def draw(self, position: int) -> int:
        """Return the row at a position in the endless sequence of draws."""
        turn, task = divmod(position, len(self.rows))
        rows = self.rows[task]
        pass_, place = divmod(turn, len(rows))
        if self._orders.get(task, (-1, []))[0] != pass_:
            shuffled = random.Random(f"{self._seed} {task} {pass_}").sample(range(len(rows)), len(rows))
            self._orders[task] = pass_, shuffled
        return rows[self._orders[task][1][place]]


class _Draws(Iterator[int]):
    """Iterator over one epoch; its position in the endless sequence determines all later draws."""

    def __init__(self, sampler: TaskSampler) -> None:
        self._sampler = sampler
        self._position = sampler.start

    def __next__(self) -> int:
        if self._position >= self._sampler.start + self._sampler.size:
            self._sampler.start = self._position
            raise StopIteration
        row = self._sampler.draw(self._position)
        self._position += 1
        return row

    def state_dict(self) -> dict[str, Any]:
        return {"position": self._position, "start": self._sampler.start}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._position, self._sampler.start = state["position"], state["start"]


def share_equally(loader: StatefulDataLoader, tasks: Sequence[str], seed: int) -> StatefulDataLoader:
    """Return a loader like ``loader`` whose batches have equal shares of the tasks, each row's being in ``tasks``."""
    return StatefulDataLoader(
        dataset=loader.dataset,
        batch_size=loader.batch_size,
        num_workers=loader.num_workers,
        drop_last=loader.drop_last,
        collate_fn=loader.collate_fn,
        sampler=TaskSampler(tasks, seed=seed),
    )
