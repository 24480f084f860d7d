"""CISPO (Eq. 3) against numbers worked out by hand, and verl's ``cispo`` against it."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_comprl.algorithm.policy_loss import cispo_loss


def cispo(example: dict[str, Any], low: float = 0.1, high: float = 0.1) -> tuple[torch.Tensor, dict[str, float]]:
    return cispo_loss(**example, clip_low=low, clip_high=high)


@pytest.fixture
def example() -> dict[str, torch.Tensor]:
    """Ratios 1.05, 2 (clipped to 1.1) and 0.5 (clipped to 0.9) with advantage 2; ratio 1 with advantage −1; padding."""
    ratio = torch.tensor([[1.05, 2.0, 0.5], [1.0, 1.0, 1.0]], dtype=torch.float64)
    old = torch.tensor([[-1.0, -1.0, -1.0], [-2.0, 0.0, 0.0]], dtype=torch.float64)
    return {
        "log_prob": (old + ratio.log()).requires_grad_(),
        "old_log_prob": old,
        "advantages": torch.tensor([[2.0], [-1.0]], dtype=torch.float64),
        "response_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
    }


def test_loss_and_metrics_by_hand(example: dict[str, torch.Tensor]) -> None:
    # log π: −1 + ln 1.05 = −0.9512098, −1 + ln 2 = −0.3068528, −1 + ln 0.5 = −1.6931472 | −2
    # 2·(1.05·−0.9512098 + 1.1·−0.3068528 + 0.9·−1.6931472) = −5.7202818; −1·1·−2 = 2; −(−3.7202818)/4 tokens
    loss, metrics = cispo(example)
    assert loss.item() == pytest.approx(0.9300704, abs=1e-6)
    # mean ratio (1.05 + 2 + 0.5 + 1)/4; one of four tokens is clipped on each side
    assert metrics == pytest.approx({"ratio": 1.1375, "clip_fraction_low": 0.25, "clip_fraction_high": 0.25})


def test_gradient_is_the_clipped_coefficient_times_the_gradient_of_log_prob(example: dict[str, torch.Tensor]) -> None:
    loss, _ = cispo(example)
    loss.backward()
    # −clip(ρ)·Â / 4: clipped tokens keep their gradient, and none flows through the ratio.
    expected = [[-1.05 * 2 / 4, -1.1 * 2 / 4, -0.9 * 2 / 4], [1 / 4, 0.0, 0.0]]
    torch.testing.assert_close(example["log_prob"].grad, torch.tensor(expected, dtype=torch.float64))


def test_both_sides_are_clipped_at_their_own_bound(example: dict[str, torch.Tensor]) -> None:
    loss, _ = cispo(example, low=0.3, high=0.5)
    loss.backward()
    expected = [[-1.05 * 2 / 4, -1.5 * 2 / 4, -0.7 * 2 / 4], [1 / 4, 0.0, 0.0]]
    torch.testing.assert_close(example["log_prob"].grad, torch.tensor(expected, dtype=torch.float64))


def test_a_failed_text_fades_with_its_probability_and_a_useful_one_keeps_the_bound(
    example: dict[str, torch.Tensor],
) -> None:
    # Ratios 1.05, 2 and 0.5 of a failed text, and the same of a useful one.
    for name in ("log_prob", "old_log_prob", "response_mask"):
        example[name] = example[name].detach()[:1].repeat(2, 1)
    example["advantages"] = torch.tensor([[-2.0], [2.0]], dtype=torch.float64)
    example["log_prob"].requires_grad_()
    loss, _ = cispo_loss(**example, clip_low=0.1, clip_high=0.1, fading=True)
    loss.backward()
    failed, useful = [1.05 * 2 / 6, 1.1 * 2 / 6, 0.5 * 2 / 6], [-1.05 * 2 / 6, -1.1 * 2 / 6, -0.9 * 2 / 6]
    torch.testing.assert_close(example["log_prob"].grad, torch.tensor([failed, useful], dtype=torch.float64))


@pytest.mark.parametrize("padding", [1000.0, -1000.0, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("where", ["log_prob", "old_log_prob"])
def test_padding_does_not_leak(example: dict[str, torch.Tensor], where: str, padding: float) -> None:
    clean, clean_metrics = cispo(example)
    mask = example["response_mask"].bool()
    example[where] = torch.where(mask, example[where].detach(), padding).requires_grad_()
    loss, metrics = cispo(example)
    assert loss.item() == clean.item() and metrics == clean_metrics
    if where == "log_prob":
        loss.backward()
        gradient = example[where].grad
        assert gradient is not None and gradient[~mask].tolist() == [0.0, 0.0]


# ---- verl's cispo equals Eq. 3 when given the generator's stored log-probs ----

token = st.tuples(st.floats(-6, -0.01), st.floats(-1.5, 1.5))  # stored log-prob, change since then
response = st.tuples(st.floats(-2, 2), st.lists(token, min_size=1, max_size=6))
batches = st.lists(response, min_size=2, max_size=5)


def padded(batch: Sequence[Any]) -> dict[str, torch.Tensor]:
    length = max(len(tokens) for _, tokens in batch)
    tensors = {name: torch.zeros(len(batch), length, dtype=torch.float64) for name in ("old", "new", "mask", "adv")}
    for row, (advantage, tokens) in enumerate(batch):
        for column, (old, change) in enumerate(tokens):
            tensors["old"][row, column] = old
            tensors["new"][row, column] = old + change
            tensors["mask"][row, column] = 1
            tensors["adv"][row, column] = advantage
    return tensors


def verl_cispo(
    rows: dict[str, torch.Tensor], new: torch.Tensor, tokens: int, data_parallel: int = 1, loss_mode: str = "cispo"
) -> torch.Tensor:
    """Call verl's registered loss as ``verl.workers.utils.losses.ppo_loss`` does."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=0.1,
        clip_ratio_high=0.1,
        loss_agg_mode="token-mean",
    )
    config.global_batch_info.update(
        dp_size=data_parallel, batch_num_tokens=tokens, global_batch_size=None, loss_scale_factor=None
    )
    loss_function: Any = get_policy_loss_fn(loss_mode)
    loss, _ = loss_function(
        old_log_prob=rows["old"],
        log_prob=new,
        advantages=rows["adv"],
        response_mask=rows["mask"].bool(),
        loss_agg_mode=config.loss_agg_mode,
        config=config,
        rollout_is_weights=None,
    )
    return loss


@settings(deadline=None)
@given(batches, st.sampled_from([1, 2]))
def test_verl_computes_eq_3_for_any_micro_batches_and_ranks(batch: list[Any], data_parallel: int) -> None:
    rows = padded(batch)
    tokens = int(rows["mask"].sum())
    ours_at = rows["new"].clone().requires_grad_()
    ours, _ = cispo_loss(ours_at, rows["old"], rows["adv"], rows["mask"], clip_low=0.1, clip_high=0.1)
    ours.backward()

    whole_at = rows["new"].clone().requires_grad_()
    whole = verl_cispo(rows, whole_at, tokens)
    whole.backward()
    torch.testing.assert_close(whole, ours)
    torch.testing.assert_close(whole_at.grad, ours_at.grad)

    # Two micro-batches of one rank accumulate; two ranks scale by dp_size and their gradients are averaged.
    split_at = rows["new"].clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for part in (slice(0, 1), slice(1, None)):
        some = {name: tensor[part] for name, tensor in rows.items()}
        loss = verl_cispo(some, split_at[part], tokens, data_parallel) / data_parallel
        loss.backward()
        total += loss.detach()
    torch.testing.assert_close(total, ours.detach())
    torch.testing.assert_close(split_at.grad, ours_at.grad)


@settings(deadline=None)
@given(batches, st.booleans())
def test_the_registered_losses_are_eq_3_and_its_fading_form(batch: list[Any], fading: bool) -> None:
    rows = padded(batch)
    ours_at, theirs_at = rows["new"].clone().requires_grad_(), rows["new"].clone().requires_grad_()
    bounds = {"clip_low": 0.1, "clip_high": 0.1}
    ours, _ = cispo_loss(ours_at, rows["old"], rows["adv"], rows["mask"], **bounds, fading=fading)
    ours.backward()
    loss_mode = "comprl_cispo_fading" if fading else "comprl_cispo"
    theirs = verl_cispo(rows, theirs_at, int(rows["mask"].sum()), loss_mode=loss_mode)
    theirs.backward()
    torch.testing.assert_close(theirs, ours)
    torch.testing.assert_close(theirs_at.grad, ours_at.grad)
