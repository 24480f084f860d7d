"""Table of the extractor's calls: what each wrote, how that was rewarded, and when it was trained on."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from verl_comprl.viewer.blocks import Block, RowBlocks, table_blocks


def call_blocks(name: str, calls: Iterable[Mapping[str, Any]]) -> Iterable[Block]:
    """Return the table as blocks.

    Args:
        name: Name of the blocks.
        calls: Each with its ``uses`` and ``trainings``.
    """
    columns: dict[str, list[Any]] = defaultdict(list)
    details = RowBlocks()
    for call in calls:
        uses, trainings = call.get("uses", ()), call.get("trainings", ())
        rewards = [use["reward"] for use in uses if use.get("reward") is not None]
        row = {
            "id": call["call"],
            "kind": call.get("kind"),
            "step": call.get("step"),
            "version": call.get("weight_version"),
            "ok": call.get("format_ok"),
            "operations": [operation.get("operation") for operation in call.get("operations", ())],
            "entries": call.get("entries", ()),
            "episode": call.get("episode"),
            "reward": fmean(rewards) if rewards else call.get("reward"),
            "uses": len(uses),
            "trainings": len(trainings),
        }
        for column, value in row.items():
            columns[column].append(value)
        details.add(call)
    return table_blocks(name, columns, details)
