"""Untyped config in, typed settings or one line per mistake out."""

import pytest
from omegaconf import DictConfig, OmegaConf, open_dict

from verl_comprl.config.reading import ConfigError, comprl_config, read_settings, unknown_overrides


def mistakes(config: DictConfig) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        comprl_config(config)
    return str(caught.value).splitlines()


def test_values_arrive_typed(shipped: DictConfig) -> None:
    shipped.comprl.bank.capacity = 7
    comprl = comprl_config(shipped)
    assert comprl.bank.capacity == 7 and comprl.merge.every == 5
    with pytest.raises(ValueError, match="frozen"):
        comprl.bank.capacity = 8  # type: ignore[misc]


def test_an_unknown_key_is_named_with_the_nearest_and_all_allowed_ones(shipped: DictConfig) -> None:
    with open_dict(shipped):
        shipped.comprl.merge.evry = 3
        shipped.comprl.xyz = {"a": 1}
    assert sorted(mistakes(shipped)) == [
        "comprl.merge.evry is unknown; did you mean every? allowed: every, chunk, workers",
        "comprl.xyz is unknown; allowed: arm, experience, initial_bank, guided_fraction, warmup_steps, guide_per, "
        "exploration, max_turn_tokens, invalid_action_penalty, poll_interval, drain_timeout, work_timeout, "
        "environments, search_and_ask, actor_critic, self_distillation, bank, queue, embedder, extractor, merge, "
        "record, watchdog",
    ]


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        (
            "comprl.bank.capacity",
            "5",
            "comprl.bank.capacity='5' is not allowed; it must be a whole number greater than 0",
        ),
        ("comprl.bank.capacity", True, "comprl.bank.capacity=True is not allowed; it must be a whole number greater"),
        ("comprl.bank.diversity", float("nan"), "comprl.bank.diversity=nan is not allowed; it must be a number of at"),
        ("comprl.experience", "yes", "comprl.experience='yes' is not allowed; it must be true or false"),
        ("comprl.embedder.query_prompt", 3, "comprl.embedder.query_prompt=3 is not allowed; it must be null or text"),
        ("comprl.bank.path", "", "comprl.bank: path must name a folder, or url a Qdrant server; both are empty"),
        ("comprl.queue.folder", "", "comprl.queue.folder='' is not allowed; it must be text that is not empty"),
        ("comprl.merge", 5, "comprl.merge=5 is not allowed; it must be a group of settings"),
    ],
)
def test_a_bad_value_is_one_line_that_says_what_is_allowed(
    shipped: DictConfig, key: str, value: object, line: str
) -> None:
    OmegaConf.update(shipped, key, value)
    (message,) = mistakes(shipped)
    assert message.startswith(line)


@pytest.mark.parametrize("value", [None, 5, [1], {5: "x"}])
def test_a_group_that_is_none_is_one_line(shipped: DictConfig, value: object) -> None:
    config = OmegaConf.create({"trainer": shipped.trainer, "comprl": value})
    (message,) = mistakes(config)
    assert message.startswith("comprl=") and message.endswith("is not allowed; it must be a group of settings")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("queue", "comprl.queue is missing; it must be a group of settings"),
        ("queue.folder", "comprl.queue.folder is missing; it must be text that is not empty"),
    ],
)
def test_what_was_deleted_is_missed(shipped: DictConfig, path: str, line: str) -> None:
    group, _, name = path.rpartition(".")
    with open_dict(shipped):
        del (shipped.comprl[group] if group else shipped.comprl)[name]
    assert mistakes(shipped) == [line]


def test_what_is_right_is_kept_beside_mistakes(shipped: DictConfig) -> None:
    shipped.comprl.bank.capacity, shipped.comprl.bank.max_batch, shipped.comprl.warmup_steps = 0, 3, 9
    comprl, found = read_settings(shipped)
    assert len(found) == 1 and (comprl.bank.capacity, comprl.bank.max_batch, comprl.warmup_steps) == (20_000, 3, 9)


def test_an_interpolation_that_leads_nowhere_is_one_line(shipped: DictConfig) -> None:
    shipped.comprl.bank.path = "${no.such.key}/bank"
    (message,) = mistakes(shipped)
    assert message.startswith("comprl.bank.path: ") and "no.such.key" in message


@pytest.mark.parametrize(
    ("override", "wrong"),
    [
        ("comprl.bank.capacity=5", None),
        ("comprl.merge={every: 3}", None),
        ("trainer.bank.capacty=5", None),
        ("comprl=default", None),
        ("comprl=null", "comprl=null is not allowed; comprl is a group of settings"),
        ("~comprl", "~comprl is not allowed; comprl is a group of settings"),
        ("--config-name=comprl.x", None),
        ("+comprl.merge.evry=3", "comprl.merge.evry is unknown; did you mean every? allowed: every, chunk"),
        ("comprl.bank.capacty=5", "comprl.bank.capacty is unknown; did you mean capacity? allowed: path, url"),
        ("comprl.bnak.capacity=a=b", "comprl.bnak is unknown; did you mean bank? allowed: arm"),
        ("comprl.warmup_steps.x=1", "comprl.warmup_steps.x is unknown: comprl.warmup_steps is a value, not a group"),
        ("~comprl.bankk", "comprl.bankk is unknown; did you mean bank? allowed: arm"),
    ],
)
def test_an_override_of_a_setting_that_does_not_exist(override: str, wrong: str | None) -> None:
    found = unknown_overrides([override])
    assert found == [] if wrong is None else len(found) == 1 and found[0].startswith(wrong)
