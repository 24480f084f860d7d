"""Ways in which installation, endpoint, environments or a cluster are wrong, and what the doctor says to each."""

import socket
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from chat_endpoint import ChatEndpoint, refusal

from env_adapters import make
from verl_comprl import compat, plugin, requirements
from verl_comprl.cli.doctor import cluster, environments, installation
from verl_comprl.cli.doctor.finding import SEE_TRACEBACK, Problem, Status
from verl_comprl.cli.doctor.setup import Setup
from verl_comprl.launch.versions import SOURCE, installed_versions
from verl_comprl.platform import detection


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
    monkeypatch.setattr(requirements, "version", lambda name: "4.0" if name == "transformers" else version(name))
    finding = doctor("versions")
    assert finding["status"] == "warning" and "transformers 4.0 (tested: 5.10.4)" in finding["message"]


@pytest.mark.parametrize(
    ("python", "supported"), [((3, 10), False), ((3, 11), True), ((3, 12), True), ((3, 13), False)]
)
def test_a_python_that_is_not_supported(
    python: tuple[int, int], supported: bool, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = ".".join(map(str, (*python, 1)))
    monkeypatch.setattr(installation, "sys", SimpleNamespace(version_info=(*python, 1, "final", 0)))
    monkeypatch.setattr(installation, "platform", SimpleNamespace(python_version=lambda: shown))
    finding = doctor("versions")
    assert (finding["status"] != "failed") == supported and f"Python {shown}" in finding["message"] + finding["remedy"]
    if not supported:
        assert finding["message"] == f"Python {shown} is not supported; supported are 3.11 and 3.12"
        assert finding["remedy"] == "make clean setup PYTHON=python3.12"


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """On a machine with GPUs, make a package flash_attn whose source is given."""
    monkeypatch.setattr(detection, "uses_cpu", lambda: False)

    def install(source: str) -> None:
        monkeypatch.setitem(sys.modules, "flash_attn", None)  # whatever the test imports is forgotten after it
        del sys.modules["flash_attn"]
        (tmp_path / "flash_attn").mkdir()
        (tmp_path / "flash_attn/__init__.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)

    return install


def test_flash_attn_where_it_is_needed(doctor: Any, flash_attn: Callable[[str], None]) -> None:
    flash_attn("__version__ = '2.8.3'")
    finding = doctor("flash-attn")
    assert finding["status"] == "ok" and finding["message"] == "flash-attn 2.8.3"


def test_no_flash_attn(doctor: Any, flash_attn: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flash_attn", None)  # as if it were not installed
    finding = doctor("flash-attn")
    assert finding["status"] == "failed" and finding["message"].startswith("flash-attn is missing")
    assert finding["remedy"] == "pip install --no-build-isolation 'verl-comprl[flash-attn]'"


def test_flash_attn_that_does_not_fit_torch(doctor: Any, flash_attn: Callable[[str], None]) -> None:
    flash_attn("raise ImportError('flash_attn_2_cuda.so: undefined symbol: _ZN3c10')")
    finding = doctor("flash-attn")
    assert finding["status"] == "failed" and "does not fit the installed torch" in finding["message"]
    assert "undefined symbol: _ZN3c10" in finding["message"]
    assert "--force-reinstall --no-deps --no-build-isolation" in finding["remedy"]


def test_flash_attn_on_a_cpu(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detection, "uses_cpu", lambda: True)
    assert doctor("flash-attn")["status"] == "skipped"


def test_no_vllm(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def version_without_vllm(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(requirements, "version", version_without_vllm)
    finding = doctor("inference")
    assert finding["status"] == "failed" and "verl-comprl[gpu]" in finding["remedy"]


def test_not_installed_as_a_distribution(doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation, "entry_points", lambda group: [])
    finding = doctor("plugin")
    assert finding["status"] == "failed" and finding["remedy"] == "pip install --no-deps -e ."


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

    monkeypatch.setenv("VERL_USE_EXTERNAL_PLUGINS", "comprl")  # it is right, so that it is not what fails
    monkeypatch.setattr(plugin, "verify", fail)
    package = SimpleNamespace(version="1.2", read_text=lambda name: source if name == "direct_url.json" else None)
    monkeypatch.setattr(requirements, "distribution", lambda _: package)
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
    ("error", "status", "message", "others"),
    [
        (RuntimeError("no\nserver"), "failed", "my-env: no", []),
        (RuntimeError(), "failed", "my-env: RuntimeError()", ["webshop"]),
        (ImportError("no engine"), "warning", "my-env (no engine)", []),
        (ImportError("no engine"), "warning", "my-env (no engine)", ["vaults", "webshop"]),
    ],
)
def test_an_environment_of_somebody_else_is_in_no_extra_of_ours(
    error: Exception, status: str, message: str, others: list[str], doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is one that needs nothing, such as vaults."""

    def make_or_fail(name: str) -> Any:
        if name == "sokoban":
            return make(name)
        raise error

    monkeypatch.setattr(environments, "list_environments", lambda: ["my-env", *others, "sokoban"])
    monkeypatch.setattr(environments, "make", make_or_fail)
    finding = doctor("environments")
    assert finding["status"] == status and message in finding["message"]
    assert finding["remedy"] == ("pip install 'verl-comprl[webshop]'" if others else SEE_TRACEBACK)


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
    assert "unset RAY_ADDRESS" in finding["remedy"]
    assert finding["remedy"].endswith("; to look: ray status --address ray://127.0.0.1:1")


def test_ray_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_SECONDS", 0.01)
    with pytest.raises(Problem, match=r"has not run a task within 0\.01 s") as caught:
        cluster.check_ray(Setup())
    assert caught.value.status is Status.FAILED


@pytest.mark.parametrize(
    ("found", "message", "remedy"),
    [
        ({"error": "no space left"}, "a Ray of this machine: no space left", "ray start --head"),
        (
            {"plugin_error": "not registered"},
            "does not load verl-comprl: not registered",
            "pip install verl-comprl on every node",
        ),
        (
            {"versions": installed_versions() | {"verl": "0.8.0"}},
            "verl is 0.8.0 there and 0.9.1 here",
            "on every node: pip install --no-deps verl==0.9.1",
        ),
    ],
)
def test_what_a_worker_reports(
    found: dict[str, Any], message: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(cluster, "_probe", lambda *_: found)
    with pytest.raises(Problem, match=message) as caught:
        cluster.check_ray(Setup())
    assert caught.value.remedy.startswith(remedy)


def test_the_commands_for_a_cluster_with_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    here = {"Python": "3.12.4", "verl": "0.9.1", "ray": "2.50", "vllm": "none", "verl-comprl": "1.2"}
    here[SOURCE] = "abc"
    monkeypatch.setattr(cluster, "installed_versions", lambda: here)
    monkeypatch.setattr(requirements, "distribution", lambda _: SimpleNamespace(version="1.2", read_text=lambda _: ""))
    monkeypatch.setattr(cluster, "_probe", lambda *_: {"versions": dict.fromkeys(here, "other") | {"ray": "2.50"}})
    with pytest.raises(Problem) as caught:
        cluster.check_ray(Setup())
    assert caught.value.remedy.removeprefix("on every node: ").split(" && ") == [
        "make clean setup PYTHON=python3.12",
        "pip install --no-deps verl==0.9.1",
        "pip uninstall vllm",
        "pip install --force-reinstall --no-deps verl-comprl==1.2",
    ]


@pytest.mark.parametrize(
    ("mode", "address", "status", "said", "remedy"),
    [
        (None, None, "ok", "", ""),
        ("token", "10.0.0.1:6379", "ok", "", ""),
        ("disabled", None, "warning", "every user of this machine can run code", "unset RAY_AUTH_MODE"),
        (
            "disabled",
            "10.0.0.1:6379",
            "warning",
            "whoever reaches the Ray cluster 10.0.0.1:6379",
            "unset RAY_AUTH_MODE, ",
        ),
    ],
)
def test_a_ray_that_asks_for_no_token(
    mode: str | None,
    address: str | None,
    status: str,
    said: str,
    remedy: str,
    doctor: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in (("RAY_AUTH_MODE", mode), ("RAY_ADDRESS", address)):
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name, raising=False)
    finding = doctor("authentication")
    assert finding["status"] == status and said in finding["message"] and finding["remedy"].startswith(remedy)
