"""The configuration that a run leaves in its folder."""

import errno
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_comprl.config.saved import FILE, changed_settings, load_config, save_config, tracked_config


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Any) -> Path:
    monkeypatch.setenv("PLACE", "/data")
    monkeypatch.setenv("SERVICE_API_KEY", "sk-1")
    monkeypatch.setenv("DB_CREDENTIAL", "swordfish-1")
    config = OmegaConf.create(
        {
            "path": "${oc.env:PLACE}/x",
            "again": "${path}",
            "key": "${oc.env:SERVICE_API_KEY}",
            "list": ["${oc.env:SERVICE_API_KEY}", 1],
            "group": {"lr": 0.1, "nothing": None},
            "store": "${oc.env:DB_CREDENTIAL}",
            "indirect": "https://user:${store}@host",
            "literal": ["--password", "swordfish-1"],
        }
    )
    save_config(config, tmp_path / "run")
    return tmp_path / "run"


def test_everything_is_resolved_but_secrets(folder: Path) -> None:
    text = (folder / FILE).read_text()
    assert "sk-1" not in text and text.count("${oc.env:SERVICE_API_KEY}") == 2
    assert "swordfish" not in text and text.count("${oc.env:DB_CREDENTIAL}") == 1
    assert "https://user:***@host" in text
    config = load_config(folder)
    assert (config.path, config.again, config.key, config.list) == ("/data/x", "/data/x", "sk-1", ["sk-1", 1])


def test_keys_that_were_set_for_the_workers_become_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    variables = {"WANDB_API_KEY": "sk-canary-0123", "PYTHONPATH": "/code", "TOKENIZERS_PARALLELISM": "true"}
    config = OmegaConf.create({"ray_init": {"runtime_env": {"env_vars": variables}}, "all": "${ray_init}"})
    save_config(config, tmp_path)
    assert "sk-canary" not in (tmp_path / FILE).read_text()
    assert changed_settings(config, tmp_path) == {}
    loaded = load_config(tmp_path)
    for settings in (loaded.ray_init, loaded["all"]):
        assert settings.runtime_env.env_vars == variables | {"WANDB_API_KEY": ""}
    monkeypatch.setenv("WANDB_API_KEY", "sk-of-the-next-shell")
    assert load_config(tmp_path).ray_init.runtime_env.env_vars.WANDB_API_KEY == "sk-of-the-next-shell"


def test_a_variable_that_says_where_the_tokenizer_lies_hides_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENIZER_PATH", "/models/Qwen3-4B")
    save_config(OmegaConf.create({"path": "/models/Qwen3-4B", "again": "${oc.env:TOKENIZER_PATH}"}), tmp_path)
    monkeypatch.delenv("TOKENIZER_PATH")
    assert load_config(tmp_path) == {"path": "/models/Qwen3-4B", "again": "/models/Qwen3-4B"}


@pytest.mark.parametrize("text", ["${task} x", "$${a ${", r"a\${b}\\", r"\\${oc.env:HOME}", "'${nothing}': \\"])
def test_a_text_that_looks_like_a_reference_stays_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PROMPT", text)
    config = OmegaConf.create({"prompt": "${oc.env:PROMPT}", "given": "\\${task}", "list": ["${prompt}"]})
    for _ in range(2):
        save_config(config, tmp_path)
        monkeypatch.delenv("PROMPT", raising=False)
        config = load_config(tmp_path)
        expected = {"prompt": text, "given": "${task}", "list": [text]}
        assert OmegaConf.to_container(config, resolve=True) == expected


def test_metrics_backends_get_no_key_but_those_that_they_are_started_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_ACCESS", "sk-of-the-endpoint")
    monkeypatch.setenv("COMPRL_REDACT", "LLM_ACCESS")
    own = {"wandb_proxy": "http://me:pass@proxy:1", "rl_insight": {"url": "http://me:pass@${trainer.host}"}}
    variables = {"OPENAI_API_KEY": "sk-of-the-workers", "PLACE": "${trainer.host}"}
    given = {"trainer": {"host": "here", **own}, "ray": {"env_vars": variables}, "key": "${oc.env:LLM_ACCESS}"}
    tracked = tracked_config(OmegaConf.create(given))
    assert tracked == {
        "trainer": {"host": "here", **own, "rl_insight": {"url": "http://me:pass@here"}},
        "ray": {"env_vars": {"OPENAI_API_KEY": "${oc.env:OPENAI_API_KEY,''}", "PLACE": "here"}},
        "key": "${oc.env:LLM_ACCESS}",
    }


@pytest.mark.parametrize(
    ("given", "saved"),
    [
        ("https://user:p@ss:word@host:80/a@b", "https://user:***@host:80/a@b"),
        ("postgresql://:canary@host", "postgresql://:***@host"),
        ("pip install git+https://ghp_0123456789@github.com/a/b.git", "pip install git+https://***@github.com/a/b.git"),
        ("HTTPS://ghp_0123456789@github.com/a", "HTTPS://***@github.com/a"),
        ("https://host/v1?api_key=canary&top=3#a", "https://host/v1?api_key=***&top=3#a"),
        ("https://host/v1?top=3&access-token=canary", "https://host/v1?top=3&access-token=***"),
        ("hdfs://me@namenode:9000/data", "hdfs://me@namenode:9000/data"),
        ("http://host:6333/a:b@c", "http://host:6333/a:b@c"),
        ("http://[::1]:6333", "http://[::1]:6333"),
    ],
)
def test_passwords_in_urls_are_not_saved(tmp_path: Path, given: str, saved: str) -> None:
    save_config(OmegaConf.create({"foreign": [{"url": given}], "port": 6333}), tmp_path)
    assert load_config(tmp_path) == {"foreign": [{"url": saved}], "port": 6333}


def test_a_disk_that_is_full_leaves_the_earlier_configuration(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = (folder / FILE).read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("verl_comprl.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_config(OmegaConf.create({"other": 1}), folder)
    assert (folder / FILE).read_bytes() == before


def test_overrides_change_what_is_there(folder: Path) -> None:
    config = load_config(folder, ["group.lr=0.5", "group.nothing=3", "list=[2]"])
    assert (config.group.lr, config.group.nothing, config.list) == (0.5, 3, [2])


def test_steps_that_the_config_leaves_to_the_epochs_are_saved(tmp_path: Path) -> None:
    config = OmegaConf.create({"trainer": {"total_training_steps": None, "total_epochs": 2}})
    save_config(config, tmp_path, 40)
    assert load_config(tmp_path).trainer.total_training_steps == 40
    assert config.trainer.total_training_steps is None
    save_config(config, tmp_path)
    assert load_config(tmp_path).trainer.total_training_steps is None


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("group.lrr=1", r"'group.lrr=1' cannot be applied to .*: group.lrr is unknown; did you mean lr\?$"),
        ("group.xyz=1", "group.xyz is unknown$"),
        ("nothng=1", r"nothng is unknown; did you mean group.nothing\?$"),
        ("smaples=1", r"smaples is unknown; did you mean --samples\?$"),
        ("group.lr", "'group.lr' cannot .* must be key=value"),
        ("group.lr.x=1", "'group.lr.x=1' cannot .*: group.lr is a value, not a group of settings$"),
        ("group.lr={x: 1}", "group.lr is a value, not a group of settings$"),
        ("list.0=2", "list is a value, not a group of settings$"),
        ("group=1", "group=1 is not allowed; it must be a group of settings$"),
    ],
)
def test_an_override_that_fits_nothing_is_an_error(folder: Path, override: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_config(folder, [override], ["--samples"])


def test_a_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="it is written when a run starts"):
        load_config(tmp_path)
