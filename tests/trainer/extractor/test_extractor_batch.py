"""verl's ``ppo_loss`` on a batch of stored records equals Eq. 3 with the generator's log-probs."""

import pytest
import torch
from verl.utils import tensordict_utils as tu
from verl.workers.config import FSDPActorConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

from verl_comprl.algorithm.policy_loss import cispo_loss
from verl_comprl.extractor.buffer import TrainingBatch
from verl_comprl.extractor.generation_record import CallKind, GenerationRecord
from verl_comprl.trainer.extractor.batch import balanced, to_tensordict


def test_verl_trains_the_stored_responses_with_the_stored_log_probs() -> None:
    stored = [(-0.5, -1.0, -2.0), (-0.25,)]
    prompts = [(11, 12), (13, 14, 15)]
    # The model's current log-probs per token of prompt + response; position t predicts token t + 1, the last one none.
    now = [[-9.0, -0.5, -0.3, -3.0, -9.0], [-9.0, -9.0, -0.3, -9.0]]
    records = [
        GenerationRecord(
            id=str(row),
            kind=CallKind.DISTILL,
            prompt_ids=prompts[row],
            response_ids=tuple(range(len(log_probs))),
            response_log_probs=log_probs,
            weight_version=0,
        )
        for row, log_probs in enumerate(stored)
    ]
    batch = TrainingBatch(records, rewards=[1.0, -1.0], weights=[1.0, 1.0], advantages=[2.0, -0.5])
    data = to_tensordict(batch)
    assert data["input_ids"].unbind(0)[0].tolist() == [11, 12, 0, 1, 2]
    assert data["position_ids"].unbind(0)[1].tolist() == [0, 1, 2, 3]
    tu.assign_non_tensor(data, dp_size=1, batch_num_tokens=4, global_batch_size=2)
    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=2,
        clip_ratio_low=0.1,
        clip_ratio_high=0.1,
        loss_agg_mode="token-mean",
        use_kl_loss=False,
        policy_loss=PolicyLossConfig(loss_mode="comprl_cispo"),
    )
    model = torch.nested.as_nested_tensor([torch.tensor(row) for row in now], layout=torch.jagged).requires_grad_()
    loss, metrics = ppo_loss(config, {"log_probs": model}, data)
    loss.backward()

    new = torch.tensor([[-0.5, -0.3, -3.0], [-0.3, 0, 0]], requires_grad=True)
    old = torch.tensor([[-0.5, -1.0, -2.0], [-0.25, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    expected, _ = cispo_loss(new, old, torch.tensor([[2.0], [-0.5]]), mask, clip_low=0.1, clip_high=0.1)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    # ratios 1, e^0.7 → 1.1, e^−1 → 0.9 and e^−0.05 = 0.9512294, times −Â/4, in front of each response's tokens
    assert model.grad is not None and new.grad is not None
    assert model.grad.values().tolist() == pytest.approx(
        [0, -0.5, -0.55, -0.45, 0, 0, 0, 0.9512294 * 0.5 / 4, 0], abs=1e-6
    )
    assert new.grad.flatten().tolist() == pytest.approx([-0.5, -0.55, -0.45, 0.9512294 * 0.5 / 4, 0, 0], abs=1e-6)
    # e^0.7 is above the range, e^−1 below it, the other two inside.
    values = {name: float(metrics[f"actor/{name}"].values[0]) for name in ("clip_fraction_low", "clip_fraction_high")}
    assert values == {"clip_fraction_low": 0.25, "clip_fraction_high": 0.25}
    assert float(metrics["actor/ratio"].values[0]) == pytest.approx((1 + 2.0137527 + 0.3678794 + 0.9512294) / 4)


def test_ranks_get_equal_work_and_each_record_keeps_its_own_numbers() -> None:
    lengths = [4000, 3000, 1000, 10, 20, 30]  # in this order the second rank would have 60 tokens
    records = [
        GenerationRecord(
            id=str(length),
            kind=CallKind.DISTILL,
            prompt_ids=(0,) * (length - 1),
            response_ids=(0,),
            response_log_probs=(-1.0,),
            weight_version=0,
        )
        for length in lengths
    ]
    numbers = [float(length) for length in lengths]
    batch = TrainingBatch(records, rewards=numbers, weights=numbers, advantages=numbers)
    shared = balanced(batch, 2)
    found = [int(record.id) for record in shared.records]
    assert sorted(found) == sorted(lengths) and abs(sum(found[:3]) - sum(found[3:])) <= 60
    assert shared.rewards == shared.weights == shared.advantages == [float(each) for each in found]
    assert balanced(batch, 1) is batch
