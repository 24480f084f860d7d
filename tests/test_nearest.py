"""The nearest name to one that is unknown."""

import pytest

from verl_comprl.nearest import did_you_mean

NAMES = ("n_gpus_per_node_and_more", "n_gpus_per_node", "nnodes", "total_epochs")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("total_epoch", "total_epochs"), ("n_gpus", "n_gpus_per_node"), ("nnode", "nnodes"), ("to", ""), ("seed", "")],
)
def test_the_nearest_is_similar_or_begins_with_what_was_given(name: str, nearest: str) -> None:
    assert did_you_mean(name, NAMES) == (f"did you mean {nearest}? " if nearest else "")
