"""A gradient that is not finite, in verl's engine, which trains both models: the weights stay as they are."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_an_update_whose_gradient_is_not_finite_changes_no_weight_and_not_the_next_update(value: float) -> None:
    """It is seen as ``actor/grad_norm``, which is null in ``metrics.jsonl`` then, and ``extractor/skipped``."""
    module = torch.nn.Linear(3, 1)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)
    config = SimpleNamespace(clip_grad=1.0)
    engine: Any = SimpleNamespace(module=module, optimizer=optimizer, optimizer_config=config, _qat_enabled=False)

    def update(rows: torch.Tensor) -> tuple[float, torch.Tensor]:
        module(rows).sum().backward()
        return FSDPEngine.optimizer_step(engine), module.weight.detach().clone()

    norm, before = update(torch.ones(2, 3))
    assert math.isfinite(norm)
    norm, after = update(torch.tensor([[1.0, value, 1.0]]))
    assert not math.isfinite(norm) and torch.equal(before, after)
    assert all(parameter.grad is None for parameter in module.parameters())
    norm, after = update(torch.ones(2, 3))
    assert math.isfinite(norm) and torch.isfinite(after).all() and not torch.equal(before, after)
