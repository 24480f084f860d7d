"""Ways in which an installation, a machine or a cluster is wrong, and what the doctor says to each."""

import shutil
import socket
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from chat_endpoint import ChatEndpoint, refusal

from verl_comprl import compat, plugin
from verl_comprl.cli.doctor import bank as bank_checks
from verl_comprl.cli.doctor import cluster, installation, machine
from verl_comprl.cli.doctor.finding import Problem, Status
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.launch.versions import installed_versions

RECIPES = Path(__file__).parents[3] / "recipes"
GIB = 2**30


class Usage(NamedTuple):
    total: int
    used: int
    free: int


@pytest.fixture
def endpoint() -> Iterator[ChatEndpoint]:
    found = ChatEndpoint(lambda _: "yes")
    found.server.start()
    yield found
    found.server.stop()


def test_wrong_verl(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "version", lambda _: "0.8.0")
    finding = doctor("verl")
    assert finding["status"] == "failed" and "verl 0.8.0 is installed" in finding["message"]
    assert finding["remedy"].startswith("pip install") and finding["remedy"].endswith("verl==0.9.1")


def test_other_versions_than_the_tested_ones(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "version", lambda name: "4.0" if name == "transformers" else version(name))
    finding = doctor("versions")
    assert finding["status"] == "warning" and "transformers 4.0 (tested: 5.10.4)" in finding["message"]


def test_missing_extra(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_checks, "find_spec", lambda name: None)
    finding = doctor("embedder")
    assert finding["status"] == "failed" and finding["message"] == "sentence-transformers is missing"
    assert finding["remedy"] == "pip install 'verl-comprl[embed]'"


def test_no_vllm(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def version_without_vllm(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "version", version_without_vllm)
    finding = doctor("inference")
    assert finding["status"] == "failed" and "verl-comprl[gpu]" in finding["remedy"]


def test_not_installed_as_a_distribution(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "entry_points", lambda group: [])
    finding = doctor("plugin")
    assert finding["status"] == "failed" and finding["remedy"] == "pip install --no-deps -e ."


def test_plugin_that_cannot_be_imported(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("registration of verl-comprl with verl failed") from ImportError("no name 'x' in verl.y")

    monkeypatch.setattr(plugin, "verify", fail)
    finding = doctor("plugin")
    assert finding["status"] == "failed" and "no name 'x' in verl.y" in finding["message"] and finding["remedy"]


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        (
            '{"url": "file:///home/a%20b/clone", "dir_info": {"editable": true}}',
            "pip install --no-deps -e '/home/a b/clone'",
        ),
        ('{"url": "file:///clone", "dir_info": {}}', "pip install --force-reinstall --no-deps /clone"),
        (None, "pip install --force-reinstall --no-deps verl-comprl==1.2"),
    ],
)
def test_the_package_is_installed_again_as_it_was(
    source: str | None, remedy: str, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("registration failed")

    monkeypatch.delenv("VERL_USE_EXTERNAL_PLUGINS", raising=False)
    monkeypatch.setattr(plugin, "verify", fail)
    package = SimpleNamespace(version="1.2", read_text=lambda name: source if name == "direct_url.json" else None)
    monkeypatch.setattr(installation, "distribution", lambda _: package)
    assert doctor("plugin")["remedy"] == remedy


def test_plugins_that_verl_is_told_to_leave_out(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "other")
    finding = doctor("plugin")
    assert finding["status"] == "failed" and finding["remedy"] == "unset VERL_USE_EXTERNAL_PLUGINS"


def test_unreachable_endpoint(doctor: Any, monkeypatch: pytest.MonkeyPatch, endpoint: ChatEndpoint) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    model = "comprl.extractor.endpoint.model=tiny"
    endpoint.failures.append(refusal(404))
    finding = doctor("endpoint", f"comprl.extractor.endpoint.url={endpoint.url}", model)
    assert finding["remedy"].startswith("set comprl.extractor.endpoint.model to one of its models; to look: curl ")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        finding = doctor("endpoint", f"comprl.extractor.endpoint.url={url}", model)
    assert finding["status"] == "failed" and "vllm serve tiny" in finding["remedy"]
    assert finding["remedy"].endswith(f"set comprl.extractor.endpoint.url=OTHER_URL; to look: curl {url}/models")


def test_full_disk(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(100 * GIB, 100 * GIB - 1000, 1000))
    finding = doctor("disk", f"trainer.default_local_dir={tmp_path}/run")
    assert finding["status"] == "failed" and f"{tmp_path}/run has 0.0 GiB free" in finding["message"]
    assert "trainer.default_local_dir=" in finding["remedy"]


def test_the_disk_of_a_folder_in_the_home_directory(
    doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    measured: list[Path] = []
    monkeypatch.setattr(shutil, "disk_usage", lambda path: measured.append(path) or Usage(100 * GIB, GIB, 99 * GIB))
    monkeypatch.setenv("RAY_TMPDIR", "~/ray")
    doctor("disk")
    assert measured[-1] == tmp_path / "home"


def test_disk_on_which_ray_stops_writing(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(1000 * GIB, 960 * GIB, 40 * GIB))
    finding = doctor("disk")
    assert finding["status"] == "warning" and "96% full" in finding["message"] and "RAY_TMPDIR" in finding["remedy"]


def test_shared_memory_of_a_container(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(2**26, 0, 2**26))
    finding = doctor("shared memory")
    assert finding["status"] == "warning" and "64 MiB" in finding["message"] and "--shm-size" in finding["remedy"]


def test_ports_that_a_firewall_closes(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_own_address", lambda: "192.0.2.1")  # no address of this machine
    finding = doctor("ports")
    assert finding["status"] == "failed" and "192.0.2.1" in finding["message"] and finding["remedy"]


def test_bad_key(doctor: Any, endpoint: ChatEndpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "wrong")
    endpoint.failures.append(refusal(401))
    given = (f"comprl.extractor.endpoint.url={endpoint.url}", "comprl.extractor.endpoint.model=tiny")
    finding = doctor("endpoint", *given)
    assert finding["status"] == "failed" and "401" in finding["message"] and endpoint.url in finding["message"]
    assert finding["remedy"] == "export OPENAI_API_KEY=…" and "wrong" not in str(finding)
    assert doctor("endpoint", *given)["message"] == f"tiny at {endpoint.url} answers"


@pytest.mark.parametrize(("variable", "name"), [("WEBSHOP_DATA", "webshop"), ("SWEBENCH_DATA", "swebench")])
def test_environment_without_data(
    variable: str, name: str, doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(variable, str(tmp_path / "empty"))
    finding = doctor("data")
    assert finding["status"] == "failed" and f"{variable}={tmp_path}/empty does not exist" in finding["message"]
    (tmp_path / "empty").mkdir()
    finding = doctor("environments")
    assert finding["status"] == "failed" and f"{name}: " in finding["message"] and variable in finding["remedy"]


@pytest.mark.parametrize(
    ("variable", "value"), [("ALFWORLD_DATA", "generated"), ("WEBSHOP_DATA", "synthetic"), ("SWEBENCH_DATA", "bundled")]
)
def test_a_name_of_an_environments_own_data_is_no_folder(
    variable: str, value: str, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    finding = doctor("data")
    assert finding["status"] == "ok" and f"{variable}={value}" in finding["message"]


def test_alfworld_without_games(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    finding = doctor("data")
    assert finding["status"] == "failed" and "has no games" in finding["message"]
    assert "alfworld-download" in finding["remedy"]


def test_no_bubblewrap(doctor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = doctor("sandbox")
    assert finding["status"] == "warning" and "bwrap not found" in finding["message"]
    assert finding["remedy"] == "apt-get install bubblewrap"


def test_ray_that_cannot_be_reached(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "ray://127.0.0.1:1")  # refused without a wait for the address
    finding = doctor("ray")
    assert finding["status"] == "failed" and "ray://127.0.0.1:1" in finding["message"]
    assert finding["remedy"] == "ray status --address ray://127.0.0.1:1"


def test_ray_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_SECONDS", 0.01)
    with pytest.raises(Problem, match=r"has not run a task within 0\.01 s") as caught:
        cluster.check_ray(Setup())
    assert caught.value.status is Status.FAILED


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({"error": "no space left"}, "a Ray of this machine: no space left"),
        ({"plugin_error": "not registered"}, "does not load verl-comprl: not registered"),
        (
            {"versions": installed_versions() | {"verl": "0.8.0"}, "plugin_error": ""},
            "verl is 0.8.0 there and 0.9.1 here",
        ),
    ],
)
def test_what_a_worker_reports(found: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "_probe", lambda *_: found)
    with pytest.raises(Problem, match=message):
        cluster.check_ray(Setup())


@pytest.mark.parametrize(
    ("available", "variables", "status", "message"),
    [
        (False, {"VERL_PLATFORM": "nvidia"}, "failed", "verl expects cuda, but PyTorch finds none"),
        (False, {"RAY_ADDRESS": "10.0.0.1:6379"}, "skipped", "verl expects cuda on the Ray cluster 10.0.0.1:6379"),
        (True, {}, "ok", "8 x cuda"),
    ],
)
def test_a_gpu_that_is_expected(
    doctor: Any,
    monkeypatch: pytest.MonkeyPatch,
    available: bool,
    variables: dict[str, str],
    status: str,
    message: str,
) -> None:
    import torch
    import verl.plugin.platform as platform

    class Cuda:
        device_name = "cuda"

    monkeypatch.delenv("VERL_PLATFORM", raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: available)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 8)
    monkeypatch.setattr(platform, "get_platform", Cuda)
    finding = doctor("device")
    assert finding["status"] == status and finding["message"].startswith(message)
    assert finding["remedy"] == ("unset VERL_PLATFORM" if status == "failed" else "")
