"""A batch of the extractor as verl's engine takes it."""

from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

from verl_comprl.extractor.buffer import TrainingBatch


def balanced(batch: TrainingBatch, ranks: int) -> TrainingBatch:
    """Return the batch in an order in which each rank has about as much to compute, as verl does for the actor.

    An episode to be distilled is many times as long as a question, and all wait for the slowest rank. The loss is a
    mean over the tokens of all ranks, so that the order does not change it.

    Args:
        batch: A multiple of ``ranks`` records.
        ranks: verl divides the rows among them: the first get the first rows.
    """
    if ranks == 1:
        return batch
    lengths = [len(record.prompt_ids) + len(record.response_ids) for record in batch.records]
    work = calculate_workload(torch.tensor(lengths)).tolist()
    parts: Any = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
    order = [row for part in parts for row in part]
    return TrainingBatch(
        records=[batch.records[row] for row in order],
        rewards=[batch.rewards[row] for row in order],
        weights=[batch.weights[row] for row in order],
        advantages=[batch.advantages[row] for row in order],
    )


def to_tensordict(batch: TrainingBatch) -> TensorDict:
    """Return a CISPO batch in verl's no-padding layout: jagged tensors, one row per record.

    ``old_log_probs`` are the generator's, stored when the text was written (Eq. 3).
    """

    def jagged(rows: list[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    prompts = [torch.tensor(record.prompt_ids, dtype=torch.int64) for record in batch.records]
    responses = [torch.tensor(record.response_ids, dtype=torch.int64) for record in batch.records]
    masks = [torch.ones_like(response) for response in responses]
    log_probs = [torch.tensor(record.response_log_probs, dtype=torch.float32) for record in batch.records]
    advantages = [
        torch.full((len(response),), advantage, dtype=torch.float32)
        for response, advantage in zip(responses, batch.advantages, strict=True)
    ]
    sequences = [torch.cat(pair) for pair in zip(prompts, responses, strict=True)]
    return tu.get_tensordict(
        {
            "prompts": jagged(prompts),
            "responses": jagged(responses),
            "input_ids": jagged(sequences),
            "position_ids": jagged([torch.arange(len(sequence)) for sequence in sequences]),
            "response_mask": jagged(masks),
            "loss_mask": jagged(masks),
            "old_log_probs": jagged(log_probs),
            "advantages": jagged(advantages),
        }
    )
