"""The generated files are what the settings say."""

from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from verl_comprl.config.generate import PAGE_FILE, YAML_FILE, page_text, yaml_text
from verl_comprl.config.reading import comprl_config
from verl_comprl.config.tree import ComprlConfig
from verl_comprl.experience import BankConfig
from verl_comprl.extractor.config import QueueConfig
from verl_comprl.settings import Settings

AGAIN = "run `python -m verl_comprl.config.generate`"


def leaves(group: type[Settings], path: str = "comprl") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in group.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Settings):
            found |= leaves(kind, f"{path}.{name}")
        else:
            found[f"{path}.{name}"] = field
    return found


def test_the_shipped_yaml_is_up_to_date() -> None:
    assert YAML_FILE.read_text(encoding="utf-8") == yaml_text(), AGAIN


def test_the_reference_page_is_up_to_date() -> None:
    assert PAGE_FILE.read_text(encoding="utf-8") == page_text(), AGAIN


def test_the_yaml_has_every_setting_and_nothing_else() -> None:
    shipped = OmegaConf.create({"comprl": yaml.safe_load(YAML_FILE.read_text(encoding="utf-8"))})
    flat: Any = OmegaConf.to_container(shipped, resolve=False)

    def names(node: Any, path: str) -> set[str]:
        return (
            set().union(*(names(value, f"{path}.{key}") for key, value in node.items()))
            if node and isinstance(node, dict)
            else {path}
        )

    assert names(flat["comprl"], "comprl") == set(leaves(ComprlConfig))


def test_every_setting_has_a_meaning_that_is_a_sentence() -> None:
    unexplained = [name for name, field in leaves(ComprlConfig).items() if not (field.description or "").endswith(".")]
    assert unexplained == [] and len(leaves(ComprlConfig)) > 60


def test_the_page_has_a_row_for_every_setting() -> None:
    rows = [line for line in PAGE_FILE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(rows) == len(leaves(ComprlConfig))
    assert all(row.count(" | ") == 3 for row in rows)


def test_the_defaults_of_the_yaml_are_those_of_the_classes(composed: DictConfig) -> None:
    folder = composed.trainer.default_local_dir
    bank = BankConfig(path=f"{folder}/bank", collection="verl_comprl-complementary_rl")
    expected = ComprlConfig(bank=bank, queue=QueueConfig(folder=f"{folder}/queue"))
    embedder = expected.embedder.model_copy(update={"device": "cpu"})
    assert comprl_config(composed) == expected.model_copy(update={"embedder": embedder})
