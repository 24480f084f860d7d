"""TransferQueue as the trainer finds it, with prompts and records of episodes."""

from collections import defaultdict
from typing import Any

import torch

from verl_comprl.record.lines import encode
from verl_comprl.rollout.recorder import FIELD, PARTITION, pack


class Queue:
    """TransferQueue with one field."""

    def __init__(self) -> None:
        self.partitions: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.fields: dict[str, torch.Tensor] = {}
        self.failure: Exception | None = None

    def kv_list(self) -> dict[str, dict[str, dict[str, Any]]]:
        return {name: dict(keys) for name, keys in self.partitions.items()}

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> dict[str, torch.Tensor]:
        assert (partition_id, select_fields) == (PARTITION, [FIELD])
        if self.failure:
            raise self.failure
        return {FIELD: torch.nested.as_nested_tensor([self.fields[key] for key in keys], layout=torch.jagged)}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.partitions[partition_id][key]

    def prompt(self, *uids: str) -> None:
        self.partitions["train"] |= {uid: {"is_prompt": True, "status": "running"} for uid in uids}

    def ended(self, id: str, *, failed: bool = False, evaluation: bool = False) -> None:
        """An episode has ended, and its worker has sent the record."""
        self.fields[id] = pack(encode({"id": id, "text": "ä" * (1 + len(self.fields)), "advantage": None}))
        self.partitions[PARTITION][id] = {"failed": failed, "evaluation": evaluation}
