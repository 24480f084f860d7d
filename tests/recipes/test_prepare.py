"""The cache around the warm start; the training itself is ``test_warm_start``."""

import json

import pytest

from recipes.minihack_small import prepare as module
from recipes.tiny_models.cache import STAMP, fingerprint


def test_a_second_call_returns_at_once_and_touches_nothing(tmp_path, monkeypatch, capsys):
    output = tmp_path / "models"
    output.mkdir()
    (output / STAMP).write_text(json.dumps({"fingerprint": fingerprint(module.SOURCES)}))
    (output / "marker").touch()
    monkeypatch.setattr(module, "_train_tokenizer", lambda folder: 1 / 0)
    module.prepare(output)
    assert (output / "marker").exists()
    assert "prepared already" in capsys.readouterr().out


def test_models_of_other_sources_are_not_taken_and_not_lost_before_the_new_ones_are_ready(tmp_path, monkeypatch):
    output = tmp_path / "models"
    output.mkdir()
    (output / STAMP).write_text(json.dumps({"fingerprint": "of something else"}))
    monkeypatch.setattr(module, "_train_tokenizer", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.prepare(output)
    assert (output / STAMP).exists()


def test_every_source_counts():
    every = fingerprint(module.SOURCES)
    assert every == fingerprint(module.SOURCES)
    assert len({every, fingerprint(module.SOURCES[:1]), fingerprint(())}) == 3
