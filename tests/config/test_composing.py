"""Composing of a run's config, as far as it fails."""

from pathlib import Path

import pytest

from verl_comprl.config.composing import compose, unknown_options
from verl_comprl.config.reading import ConfigError

MISTAKES = {
    "trainer.n_gpus=4": "trainer.n_gpus is unknown; did you mean n_gpus_per_node? a new key is set with "
    "+trainer.n_gpus=",
    "trainer.total_epoch=3": "trainer.total_epoch is unknown; did you mean total_epochs? a new key is set with "
    "+trainer.total_epoch=",
    "data.nothing_like_it.n=1": "data.nothing_like_it is unknown; a new key is set with +data.nothing_like_it=",
    "extractor.actor.optim.lrr=1": "extractor.actor.optim.lrr is unknown; did you mean lr? a new key is set with "
    "+extractor.actor.optim.lrr=",
    "trainer.test_freq.x=1": "trainer.test_freq is a value, not a group of settings",
    "trainer.total_epochs": "trainer.total_epochs cannot be read: Error parsing override 'trainer.total_epochs' "
    "missing EQUAL at '<EOF>'",
}


@pytest.mark.parametrize("override", MISTAKES)
def test_a_mistake_is_one_line(override: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(None, None, [override])
    assert str(raised.value) == MISTAKES[override]


def test_an_unknown_choice_of_a_group_names_the_choices_and_not_where_hydra_looked() -> None:
    with pytest.raises(ConfigError) as raised:
        compose(None, None, ["actor@extractor.actor=megatron_actr"])
    line = str(raised.value)
    assert line.startswith("actor=megatron_actr is unknown; did you mean megatron_actor? allowed: actor, dp_actor, ")
    with pytest.raises(
        ConfigError, match=r"^arm=complementry is unknown; did you mean complementary[?] allowed: all_g"
    ):
        compose(None, None, ["arm=complementry"])


def test_an_unknown_option_is_one_line_with_the_nearest() -> None:
    assert unknown_options(["--cfgg", "job"]) == ["--cfgg is unknown; did you mean --cfg? see --help"]
    assert unknown_options(["--confg-name=recipe"]) == [
        "--confg-name is unknown; did you mean --config-name? see --help"
    ]
    for known in (
        ["--cfg", "job", "a=-1"],
        ["--config-name=recipe"],
        ["--config-n", "recipe"],
        ["-c", "job", "~a"],
        [],
    ):
        assert unknown_options(known) == []


def test_a_recipe_that_is_no_yaml_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("a: [1,\n")
    with pytest.raises(ConfigError) as raised:
        compose(tmp_path, "mine", [])
    assert "\n" not in str(raised.value) and "mine.yaml" in str(raised.value)
