"""Overrides as text, compared with what Hydra makes of them."""

from pathlib import Path

import hydra
import pytest

from verl_comprl.sweep.overrides import effective, key


@pytest.mark.parametrize("override", ["a.b=1", "+a.b=1", "++a.b=x=y", "~a.b", "~a.b=1"])
def test_the_key_of_an_override(override: str) -> None:
    assert key(override) == "a.b"


def test_the_last_override_of_a_key_counts() -> None:
    assert effective(["a=1", "b=2", "++a=3"]) == {"a": "3", "b": "2"} == effective(["b=2", "a=3"])
    assert effective(["a=1", "~a"]) == {"a": "~"} != effective(["~a", "a=1"])


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (["a=1", "a=2"], ["a=2"]),
        (["a=1", "a=2"], ["a=2", "a=1"]),
        (["c=[1]", "c=[2]"], ["c=[2]"]),
        (["+m={x:1}", "+m={y:2}"], ["+m={y:2}"]),
        (["m.x=1", "++m.x=2"], ["m.x=2"]),
        (["~a", "+a=2"], ["a=2"]),
        (["a=2", "~a"], ["a=2"]),
    ],
)
def test_overrides_are_equal_where_hydra_makes_the_same_of_them(one: list[str], two: list[str], tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("a: 0\nc: [0]\nm: {x: 0}\n")
    with hydra.initialize_config_dir(str(tmp_path), version_base=None):
        same = hydra.compose("recipe", overrides=one) == hydra.compose("recipe", overrides=two)
    assert (effective(one) == effective(two)) == same
