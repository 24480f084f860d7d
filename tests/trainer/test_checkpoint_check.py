"""Checkpoints that this release cannot read are refused before anything of the run is opened."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from omegaconf import OmegaConf

from verl_comprl.config.tree import ComprlConfig
from verl_comprl.extractor.generation_record import GenerationRecord, write_records
from verl_comprl.trainer import experience_runtime
from verl_comprl.trainer.checkpoint import STATE_FILE, check
from verl_comprl.trainer.experience_runtime import ExperienceRuntime


@pytest.fixture
def folder(tmp_path: Path, make_record: Callable[..., GenerationRecord]) -> Path:
    """The parts of a checkpoint that are looked at."""
    (tmp_path / "comprl" / "buffer").mkdir(parents=True)
    (tmp_path / "extractor").mkdir()
    (tmp_path / STATE_FILE).write_text("{}")
    write_records(tmp_path / "comprl" / "buffer" / "records.parquet", [make_record("a")])
    return tmp_path


def make_old(folder: Path) -> None:
    """Remove what release 0.1.0 did not write."""
    file = folder / "comprl" / "buffer" / "records.parquet"
    pq.write_table(pq.read_table(file).drop_columns(["format_failure"]), file)


def test_a_checkpoint_of_this_release_is_accepted(folder: Path) -> None:
    check(folder)


def test_the_refusal_of_an_older_one_says_what_to_do(folder: Path) -> None:
    make_old(folder)
    with pytest.raises(ValueError, match=r"continue this run with the release that wrote it.*comprl\.initial_bank="):
        check(folder)


def test_a_frozen_extractors_checkpoint_cannot_be_continued_with_an_engine(folder: Path) -> None:
    (folder / "extractor").rmdir()
    check(folder, has_engine=False)
    with pytest.raises(FileNotFoundError, match=r"no weights of an extractor: .*backend=endpoint or actor.*initial_b"):
        check(folder)


def test_a_checkpoint_of_plain_verl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="is not a verl-comprl checkpoint"):
        check(tmp_path)


def test_the_bank_is_not_opened_for_a_checkpoint_that_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(experience_runtime, "start_manager", lambda *_: (None, None))
    monkeypatch.setattr(experience_runtime, "wait_for", lambda *_: None)
    monkeypatch.setattr(experience_runtime, "open_bank", lambda *_, **options: opened.append(options))
    monkeypatch.setattr(experience_runtime, "comprl_config", lambda _: ComprlConfig.model_construct())
    ExperienceRuntime(OmegaConf.create()).open(folder)
    make_old(folder)
    with pytest.raises(ValueError, match="release that wrote it"):
        ExperienceRuntime(OmegaConf.create()).open(folder)
    assert opened == [{"keep_content": True}]
