"""``comprl bank distill --local``: a model that is served on this machine while the command runs."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from verl_comprl.cli import local_model

Run = Callable[..., Any]
HERE = Path(__file__).parent
EXTRACTOR = HERE.parents[1] / "recipes/miniature/models/plain/extractor"


@pytest.fixture
def episodes(tmp_path: Path) -> Path:
    messages = [{"role": "user", "content": "a red iron vault"}, {"role": "assistant", "content": "left"}]
    episode = {"id": "1", "task": "vaults", "goal": "open the red iron vault", "success": True, "messages": messages}
    (tmp_path / "episodes.jsonl").write_text(json.dumps(episode))
    return tmp_path / "episodes.jsonl"


@pytest.fixture
def note(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Put another server in the place of vLLM's; returns the file in which it writes the number of its process."""
    monkeypatch.setattr(local_model, "_SERVER", "stand_in_server")
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path / "note"


def test_the_server_answers_and_ends_with_the_command(
    comprl_bank: Run, episodes: Path, note: Path, tmp_path: Path
) -> None:
    given = ["distill", "--path", tmp_path / "bank", "--episodes", episodes, "--model", "tiny"]
    done = comprl_bank(*given, f"--local=--note {note}")
    assert done.code == 0 and "1 gave experience" in done.out, done.err
    (entry,) = comprl_bank("list", "--path", tmp_path / "bank", "--json").objects
    assert entry["title"] == "iron vault"
    assert not psutil.pid_exists(int(note.read_text()))
    assert not list(tmp_path.glob("comprl-vllm-*"))


def test_a_model_that_cannot_be_served_is_an_error_with_the_servers_last_line(
    comprl_bank: Run, episodes: Path, note: Path, tmp_path: Path
) -> None:
    given = ["distill", "--path", tmp_path / "bank", "--episodes", episodes, "--model", "broken"]
    done = comprl_bank(*given, f"--local=--note {note}")
    said = re.search(
        r"vLLM's server of --model broken did not start \((\S+)\): OSError: broken is no model$", done.err, re.M
    )
    assert done.code == 2 and said, done.err
    assert Path(said[1]).read_text() == "loading …\nOSError: broken is no model\n\n"
    assert not (tmp_path / "bank").exists()


def test_without_vllm_the_error_says_what_to_do(
    comprl_bank: Run, episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    given = ["distill", "--path", tmp_path / "bank", "--episodes", episodes, "--model", "tiny", "--local"]
    done = comprl_bank(*given)
    assert done.code == 2 and "--local needs vLLM: pip install vllm" in done.err


@pytest.mark.run
@pytest.mark.long
def test_a_real_model_is_served_by_vllm(
    comprl_bank: Run, episodes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    given = ["distill", "--path", tmp_path / "bank", "--episodes", episodes, "--model", EXTRACTOR, "--max-tokens", 40]
    before = {process.pid for process in psutil.process_iter()}
    done = comprl_bank(*given, "--local=--enforce-eager --max-model-len 1024")
    # What a model of half a million parameters answers is its own business, as long as it did.
    assert re.search(r"1 episodes: 1 (gave experience|had nothing new|gave an answer)", done.out), done.err
    served = [process for process in psutil.process_iter(["cmdline"]) if process.pid not in before]
    assert not [process for process in served if "vllm" in " ".join(process.info["cmdline"] or ())]
