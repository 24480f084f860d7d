"""Equal share per task in every batch of a mix, whatever the sizes of the datasets."""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Sampler


class TaskSampler(Sampler[int]):
    """Draws from the tasks in turn, so that any ``b`` rows in a row hold ``b / tasks`` of each, give or take one.

    Every task's rows come in a random order, all of them before one comes again; a small task is through sooner and
    begins anew. An epoch is as many draws as there are rows. Its iterators keep their place in torchdata's
    ``StatefulDataLoader``.
    """

    def __init__(self, tasks: Sequence[str], *, seed: int = 0) -> None:
        """Sort rows by task.

        Args:
            tasks: Task of each row of the dataset.
            seed: Chooses the order.
        """
        self.rows = [[row for row, task in enumerate(tasks) if task == name] for name in sorted(set(tasks))]
        self.size = len(tasks)
        self.start = 0
        """Draws before the next epoch."""
        self._seed = seed
        self._orders: dict[int, tuple[int, list[int]]] = {}

    def __len__(self) -> int:
        """Return the draws of an epoch."""
        return self.size

    def __iter__(self) -> Iterator[int]:
        """Begin the next epoch."""
        return _Draws(self)

    def draw(self, position: int) -> int:
        """Return the row that stands at a position of the endless order."""
        turn, task = divmod(position, len(self.rows))
        rows = self.rows[task]
        round_, place = divmod(turn, len(rows))
        if self._orders.get(task, (-1, []))[0] != round_:
            shuffled = random.Random(f"{self._seed} {task} {round_}").sample(range(len(rows)), len(rows))
            self._orders[task] = round_, shuffled
        return rows[self._orders[task][1][place]]


class _Draws(Iterator[int]):
    """An epoch; its place is an absolute position, from which everything else follows."""

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
