"""Table of a run's episodes, and the free half of each prompt."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from verl_comprl.viewer.blocks import Block, RowBlocks, table_blocks
from verl_comprl.viewer.comparison import Outcome, Tally
from verl_comprl.viewer.entries import Entries

Record = Mapping[str, Any]


class Episodes:
    """Episodes of one run in the order of steps."""

    def __init__(self) -> None:
        """Start without episodes."""
        self._columns: dict[str, list[Any]] = defaultdict(list)
        self._details = RowBlocks()
        self.free: defaultdict[str, Tally] = defaultdict(Tally)
        """Free training episodes by prompt."""
        self.trained: defaultdict[tuple[int, str], list[Outcome]] = defaultdict(list)
        """Outcomes of the episodes that were trained, by step and half."""
        self.kept = 0
        """Episodes with their turns."""
        self.failures: Counter[str] = Counter()

    def __len__(self) -> int:
        """Return the number of episodes."""
        return len(self._columns["id"])

    def add(self, record: Record, entries: Entries, details: bool) -> None:
        """Add an episode and note what it read.

        Args:
            record: The episode as it stands in the run's folder.
            entries: The run's entries.
            details: Whether its turns are kept too.
        """
        guide, outcome = record.get("guide") or {}, record.get("outcome")
        entry = guide.get("entry") if record.get("guided") else None
        turns = [*record.get("turns", ()), *filter(None, [record.get("unfinished")])]
        questions = [question for turn in turns for question in turn.get("questions", ())]
        asked = {
            question["entry"]: question.get("entry_text", "")
            for question in questions
            if question.get("entry") and question["entry"] != entry
        }
        training = record.get("kind") == "training"
        read = {entry: (guide.get("entry_text", ""), False)} if entry else {}
        read |= {id: (text, True) for id, text in asked.items()}
        for id, (text, through_answer) in read.items():
            entries.get(id, text)
            if training and outcome:
                entries.note_read(id, text, record["id"], outcome["success"], through_answer)
        if training and outcome and not record.get("guided"):
            self.free[record["prompt"]].add(bool(outcome["success"]))
        half = "guided" if record.get("guided") else "free"
        if training and outcome and record.get("status") == "trained":
            self.trained[record.get("step", 0), half].append((record["prompt"], bool(outcome["success"])))
        if error := record.get("error"):
            self.failures[error.get("boundary", "")] += 1
        row = {
            name: record.get(name) for name in ("id", "prompt", "kind", "status", "step", "task", "seed", "advantage")
        }
        row |= {
            "half": half,
            "success": outcome["success"] if outcome else None,
            "score": record.get("score"),
            "actions": len(record.get("turns", ())),
            "invalid": record.get("invalid_actions"),
            "entry": entry,
            "asked": list(asked),
            "answered": sum(question.get("status") == "answered" for question in questions),
        }
        for column, value in row.items():
            self._columns[column].append(value)
        self.kept += details
        self._details.add(record if details else None)

    def blocks(self, name: str) -> Iterable[Block]:
        """Return the table as blocks with this name."""
        return table_blocks(name, self._columns, self._details)
